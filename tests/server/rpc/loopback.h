// A real server on a loopback port whose ListModels does what the test says.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/rpc/channel.h"
#include "server/rpc/server.h"
#include "server/rpc/status.h"

namespace runahead::testing {

// Hands each call's reactor to `on_call`, which finishes it at once or later, on any thread.
class FakeInference final : public v1::Inference::CallbackService {
 public:
  using OnCall = std::function<void(grpc::CallbackServerContext*, grpc::ServerUnaryReactor*)>;
  explicit FakeInference(OnCall on_call) : on_call_(std::move(on_call)) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest*,
                                       v1::ListModelsResponse*) override {
    auto* const reactor = new Reactor;
    on_call_(context, reactor);
    return reactor;
  }

 private:
  struct Reactor final : grpc::ServerUnaryReactor {
    void OnDone() override { delete this; }
  };
  OnCall on_call_;
};

inline void FinishAtOnce(grpc::CallbackServerContext*, grpc::ServerUnaryReactor* reactor) {
  reactor->Finish(grpc::Status::OK);
}

inline std::unique_ptr<RpcServer> StartServer(grpc::Service& service) {
  auto server = RpcServer::Start({.listen = "127.0.0.1:0", .services = {&service}, .health_names = {"runahead.test"}});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

inline absl::Status CallListModels(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  v1::ListModelsResponse response;
  return FromGrpcStatus(v1::Inference::NewStub(channel)->ListModels(&context, {}, &response));
}

}  // namespace runahead::testing
