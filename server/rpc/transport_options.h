// What both ends of our connections agree on.
#pragma once

#include "absl/time/time.h"

namespace runahead {

// Of what router and workers say to each other (worker.proto, kv.proto, links): raised by whatever an older one would
// misread. A router takes no worker of another version.
inline constexpr int kProtocolVersion = 9;

// How a silent connection is judged: the side that has heard nothing for `time` asks (an HTTP/2 ping), and hangs up
// when no answer came within `timeout` after that. gRPC gives bytes that the peer's host does not acknowledge the same
// `timeout` (TCP_USER_TIMEOUT). Either side may ask as often as it likes: our servers punish no pings.
struct KeepAlive {
  absl::Duration time;
  absl::Duration timeout;
};

// Between our own processes it only finds hosts that are gone and networks that are cut. Who is hung is judged by the
// pings on the control stream, which know when we ourselves stood still; a gRPC timer does not: after a SIGCONT it
// fires before the answer that waits in the socket is read. So a pause of either side, of 10 s at the most, must fit
// into the timeout twice over.
inline constexpr KeepAlive kProcessKeepAlive{absl::Seconds(10), absl::Seconds(20)};

// Between clients and the router. A client's network may stand still for a while, and one that reads synchronously and
// is busy elsewhere (`runahead generate | less`) answers no ping: neither is a reason to end its stream. One that takes
// nothing of its answer for too long is ended by the router itself (stall_timeout).
inline constexpr KeepAlive kPublicKeepAlive{absl::Seconds(60), absl::Minutes(4)};

// A million token ids are up to 5 MB; text of the longest context is less.
inline constexpr int kMaxMessageBytes = 16 << 20;

}  // namespace runahead
