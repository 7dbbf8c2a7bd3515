// Device bytes on their way to something that sends host bytes: an edge between hosts, or a hand-off.
#pragma once

#include <functional>
#include <memory>

#include "kernels/base/event.h"
#include "worker/link/staging_lane.h"

namespace runahead {

// Calls `send` at once, with bytes that are there when the event beside them has fired; nothing looks at them before.
// Meanwhile `bytes` are copied: when `after` has fired and `lane` has room, which comes back when what `send` returned
// has fired. Where `after` fails, or there is no room to be had, `send`'s event does with that status. Returns the
// event of `send`, once `bytes` may be reused.
Event SendStaged(const std::shared_ptr<StagingLane>& lane, ConstBufferRef bytes, const Event& after,
                 const std::function<Event(ConstBufferRef staged, const Event& ready)>& send);

}  // namespace runahead
