// One Generate call.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/base/interrupt.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/base/trace_context.h"

namespace runahead {

// What goes with a call beside its request.
struct CallOptions {
  absl::Duration timeout = absl::InfiniteDuration();  // of the whole call
  std::string tenant = {};                            // whose the request is; empty: nobody's
  std::optional<TraceContext> span = {};              // that the call is part of, where there is one
};

// Blocks until the stream has ended; hands each message to `on_response` as it comes. Ctrl-C cancels the call:
// CANCELLED, and `*signal` is the signal (else 0).
absl::Status GenerateCall(v1::Inference::StubInterface& stub, const v1::GenerateRequest& request,
                          const CallOptions& options, Interrupt& interrupt,
                          const std::function<void(v1::GenerateResponse)>& on_response, int* signal);

}  // namespace runahead
