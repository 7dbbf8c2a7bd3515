// A router whose answers the test writes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/rpc/server.h"
#include "server/rpc/status.h"
#include "tests/testing/await_change.h"

namespace runahead::testing {

class FakeInference final : public v1::Inference::Service {
 public:
  using Writer = grpc::ServerWriter<v1::GenerateResponse>;
  // Runs on a thread of gRPC.
  using OnGenerate = std::function<absl::Status(const v1::GenerateRequest&, Writer&)>;

  explicit FakeInference(OnGenerate on_generate) : on_generate_(std::move(on_generate)) {
    auto server = RpcServer::Start({.listen = "127.0.0.1:0", .services = {this}, .health_names = {}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    model.set_name("fake-model");
  }

  const std::string& address() const { return server_->address(); }

  // What ListModels gives; set before it is called.
  v1::Model model;
  // What GetTrace gives; set before it is called.
  std::function<absl::Status(const v1::GetTraceRequest&, v1::Trace&)> on_trace = nullptr;
  // The value of the key in the last Generate call's metadata; empty where it has none.
  std::string metadata(const std::string& key) const {
    MutexLock lock(mu_);
    const auto found = metadata_.find(key);
    return found == metadata_.end() ? "" : found->second;
  }
  std::string traceparent() const { return metadata("traceparent"); }

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request, Writer* writer) override {
    {
      MutexLock lock(mu_);
      metadata_.clear();
      for (const auto& [key, value] : context->client_metadata()) {
        metadata_[std::string(key.data(), key.size())].assign(value.data(), value.size());
      }
    }
    return ToGrpcStatus(on_generate_(*request, *writer));
  }
  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override {
    for (const char c : request->text()) response->add_ids(c);
    for (const v1::ChatMessage& message : request->chat().messages()) {
      for (const char c : message.role() + message.content()) response->add_ids(c);
    }
    if (request->special()) response->add_ids(-1);
    if (request->without_begin()) response->add_ids(1000);
    return grpc::Status::OK;
  }
  grpc::Status Detokenize(grpc::ServerContext*, const v1::DetokenizeRequest* request,
                          v1::DetokenizeResponse* response) override {
    for (const int32_t id : request->ids()) response->mutable_text()->push_back(static_cast<char>(id));
    if (request->special()) response->mutable_text()->append("<>");
    return grpc::Status::OK;
  }
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    *response->add_models() = model;
    return grpc::Status::OK;
  }
  grpc::Status GetTrace(grpc::ServerContext*, const v1::GetTraceRequest* request, v1::Trace* trace) override {
    return ToGrpcStatus(on_trace(*request, *trace));
  }

 private:
  const OnGenerate on_generate_;
  mutable Mutex mu_;
  std::map<std::string, std::string> metadata_ RUNAHEAD_GUARDED_BY(mu_);
  std::unique_ptr<RpcServer> server_;
};

inline v1::GenerateResponse Started() {
  v1::GenerateResponse response;
  response.mutable_started()->set_request_id("r-1");
  response.mutable_started()->mutable_plan()->set_schedule("single");
  return response;
}

inline v1::GenerateResponse Text(const std::string& text) {
  v1::GenerateResponse response;
  response.mutable_tokens()->add_ids(1);
  response.mutable_tokens()->set_text(text);
  return response;
}

inline v1::GenerateResponse Finished() {
  v1::GenerateResponse response;
  response.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
  return response;
}

// Writes until the client is gone.
inline void WriteForEver(FakeInference::Writer& writer) {
  while (writer.Write(Text(""))) {
  }
}

// A door that a handler waits at until the test opens it.
class Gate {
 public:
  void Open() {
    MutexLock lock(mu_);
    open_ = true;
    changed_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(mu_);
    ChangeWait wait("the test opens the door");
    while (!open_) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool open_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

}  // namespace runahead::testing
