// Messages that come compressed, made whole. gRPC would do that before it looks at the size: a MiB on the wire may be a
// GiB. So our servers have it leave them as they came (RpcServer), and they are unfolded here.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "server/base/byte_budget.h"

namespace runahead {

// Makes of a message that came compressed what it stands for; another one stays as it is. What it takes is added to
// `memory` before it is taken. RESOURCE_EXHAUSTED where it has more than `longest` bytes, of which no more than these
// are made, or where there is no memory; INVALID_ARGUMENT where it cannot be unfolded. Any thread.
absl::Status UnfoldMessage(grpc::ByteBuffer& message, int64_t longest, ByteBudget::Lease& memory);

}  // namespace runahead
