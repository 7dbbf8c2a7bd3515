// Clients over gRPC, on one connection, as the gateway's calls are.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "tests/bench/door_clients.h"
#include "tests/bench/door_process.h"

namespace runahead {

struct Sums {
  Mutex mu;
  CondVar changed;
  int left RUNAHEAD_GUARDED_BY(mu) = 0;
  std::vector<absl::Duration> ttfts RUNAHEAD_GUARDED_BY(mu);
  std::atomic<int64_t> tokens = 0;
};

class GrpcCall final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  GrpcCall(v1::Inference::StubInterface& stub, const Wanted& wanted, Sums& sums) : sums_(sums), began_(MonotonicNow()) {
    v1::ChatMessage& message = *request_.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content("Say something.");
    request_.mutable_stop()->set_max_tokens(wanted.tokens);
    if (wanted.pace_ms > 0) request_.mutable_sampling()->set_seed(static_cast<uint64_t>(wanted.pace_ms));
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.has_tokens()) {
      ++sums_.tokens;
      if (!spoke_) {
        spoke_ = true;
        const absl::Duration ttft = MonotonicNow() - began_;
        MutexLock lock(sums_.mu);
        sums_.ttfts.push_back(ttft);
      }
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!status.ok()) Die(status.error_message());
    MutexLock lock(sums_.mu);
    if (--sums_.left == 0) sums_.changed.NotifyAll();
  }

  Sums& sums_;
  const absl::Time began_;
  bool spoke_ = false;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
};

inline Came RunGrpc(v1::Inference::StubInterface& stub, const Wanted& wanted) {
  Sums sums;
  std::vector<std::unique_ptr<GrpcCall>> calls;
  const absl::Time began = MonotonicNow();
  {
    MutexLock lock(sums.mu);
    sums.left = wanted.streams;
  }
  for (int i = 0; i < wanted.streams; ++i) calls.push_back(std::make_unique<GrpcCall>(stub, wanted, sums));
  MutexLock lock(sums.mu);
  while (sums.left > 0) sums.changed.Wait(sums.mu);
  return {sums.tokens, MonotonicNow() - began, sums.ttfts};
}

}  // namespace runahead
