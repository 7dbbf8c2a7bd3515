// Unary calls to workers, with a time-out that knows when this process itself stood still. A gRPC deadline does not: it
// runs on meanwhile, and ends the call after the pause before the answer that waits in the socket is read.
#pragma once

#include <grpcpp/client_context.h>

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/hearing.h"
#include "server/router/cancel_token.h"
#include "server/task/task.h"

namespace runahead {

// Starts the call: a method of the stub's async(), which takes both.
using StartUnary = std::function<void(grpc::ClientContext* context, std::function<void(grpc::Status)> done)>;

// Waits until the call has ended, and says how. When one of `ends` is cancelled, the call is too, and the status is
// that token's. DEADLINE_EXCEEDED when no answer came for `patience`, which begins anew when this process has stood
// still, and does not count while it is behind with reading (Silence). Whatever was asked for, an answer that came is
// OK. `clock` and `hearing` outlive the call.
Task<absl::Status> CallWorker(Clock& clock, Hearing& hearing, absl::Duration patience, std::vector<CancelToken*> ends,
                              StartUnary start);

}  // namespace runahead
