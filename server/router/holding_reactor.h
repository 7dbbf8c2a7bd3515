// A unary call of the router's whose answer comes from elsewhere.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/status/status.h"
#include "server/base/drain_gate.h"
#include "server/router/cancel_token.h"

namespace runahead {

// Holds its pass until gRPC is done with it; then it deletes itself. It lives until Finish is called, at least.
class HoldingReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit HoldingReactor(DrainGate::Pass pass) : pass_(std::move(pass)) {}

  // Cancelled when the client goes away or its deadline passes.
  CancelToken& cancel() { return cancel_; }

 private:
  void OnCancel() override { cancel_.Cancel(absl::CancelledError("the call has ended")); }
  void OnDone() override { delete this; }

  DrainGate::Pass pass_;
  CancelToken cancel_;
};

}  // namespace runahead
