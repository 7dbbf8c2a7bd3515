// Hand-off inside one process (--role both): the same checks, and a copy.
#pragma once

#include <memory>

#include "worker/handoff/retrying_sender.h"
#include "worker/handoff/slice_receiver.h"

namespace runahead {

// A transport into `receiver`, whichever peer a slice is sent to. Copies on a thread of its own. `receiver` outlives
// it.
std::shared_ptr<SliceTransport> MakeInProcessTransport(SliceReceiver& receiver);

}  // namespace runahead
