// A router that answers at once. An answer is `started`, max_tokens messages of one token, as fast as the call takes
// them, and `finished`; where a request has a seed, the next token comes so many milliseconds after the one before was
// written.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/base/descriptor_limit.h"
#include "server/rpc/lock_graph.h"
#include "tests/bench/door_process.h"

namespace runahead {

class Answer final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  Answer(const v1::GenerateRequest& request, std::atomic<int64_t>& said, std::atomic<int64_t>& cancelled)
      : tokens_(request.stop().max_tokens()),
        pace_ms_(static_cast<int>(request.sampling().seed())),
        said_(said),
        cancelled_(cancelled) {
    response_.mutable_started()->set_request_id(request.request_id());
    response_.mutable_started()->set_prompt_tokens(8);
    StartWrite(&response_);
  }

 private:
  void OnWriteDone(bool ok) override {
    if (!ok || done_) return Finish(ok ? grpc::Status::OK : grpc::Status::CANCELLED);
    if (pace_ms_ == 0 || index_ == 0) return Say();
    alarm_.Set(std::chrono::system_clock::now() + std::chrono::milliseconds(pace_ms_), [this](bool rang) {
      if (rang) return Say();
      Finish(grpc::Status::CANCELLED);
    });
  }
  void OnCancel() override {
    cancelled_ = MachineNanoseconds();
    alarm_.Cancel();
  }
  void OnDone() override { delete this; }

  void Say() {
    if (index_ == tokens_) {
      v1::Finished& finished = *response_.mutable_finished();
      finished.set_reason(v1::FINISH_REASON_LENGTH);
      finished.mutable_usage()->set_prompt_tokens(8);
      finished.mutable_usage()->set_completion_tokens(tokens_);
      done_ = true;
    } else {
      v1::Tokens& tokens = *response_.mutable_tokens();
      tokens.Clear();
      tokens.set_index(index_++);
      tokens.add_ids(100);
      tokens.set_text(" word");
      ++said_;
    }
    StartWrite(&response_);
  }

  const int tokens_, pace_ms_;
  std::atomic<int64_t>&said_, &cancelled_;
  int index_ = 0;
  bool done_ = false;
  v1::GenerateResponse response_;
  grpc::Alarm alarm_;
};

class InstantRouter final : public v1::Inference::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext*,
                                                           const v1::GenerateRequest* request) override {
    return new Answer(*request, said_, cancelled_);
  }
  // kv_bytes_per_token is how many tokens it has said; `fingerprint`, when a call was last cancelled, by
  // MachineNanoseconds.
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest*,
                                       v1::ListModelsResponse* response) override {
    v1::Model& model = *response->add_models();
    model.set_name("instant");
    model.set_context_length(1 << 20);
    model.set_kv_bytes_per_token(said_);
    model.set_fingerprint(absl::StrCat(cancelled_.load()));
    auto* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  std::atomic<int64_t> said_ = 0, cancelled_ = 0;
};

// Says its address on a line, and serves until it is killed.
inline int Router() {
  RaiseDescriptorLimit();
  KeepNoLockGraph();  // as a router does
  InstantRouter service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::printf("127.0.0.1:%d\n", port);
  std::fflush(stdout);
  server->Wait();
  return 0;
}

}  // namespace runahead
