// Hand-off inside one process (--role both): the same checks, and a copy.
#pragma once

#include <memory>

#include "server/base/progress_meter.h"
#include "worker/handoff/slice_receiver.h"
#include "worker/handoff/slice_sender.h"

namespace runahead {

// A transport into `receiver`, whichever peer a slice is sent to. Copies on a thread of its own, which `progress`,
// where given, is of. `receiver` outlives it.
std::shared_ptr<SliceTransport> MakeInProcessTransport(SliceReceiver& receiver,
                                                       std::shared_ptr<ProgressMeter> progress = nullptr);

}  // namespace runahead
