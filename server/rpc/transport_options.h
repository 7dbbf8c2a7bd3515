// What both ends of our connections agree on.
#pragma once

#include "absl/time/time.h"

namespace runahead {

// A peer that hangs is noticed after kKeepaliveTime + kKeepaliveTimeout: the 3 s that docs/architecture.md promises.
inline constexpr absl::Duration kKeepaliveTime = absl::Seconds(1);
inline constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(2);

// A million token ids are up to 5 MB; text of the longest context is less.
inline constexpr int kMaxMessageBytes = 16 << 20;

}  // namespace runahead
