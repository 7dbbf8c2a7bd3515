// Networks that stand still, for longer than a short timeout; for as long as ours in keep_alive_test.cc.
#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "gtest/gtest.h"
#include "server/rpc/channel.h"
#include "server/rpc/transport_options.h"
#include "tests/server/rpc/loopback.h"
#include "tests/testing/await.h"
#include "tests/testing/patience.h"
#include "tests/testing/tcp_proxy.h"

namespace runahead {
namespace {

// Both ask soon when they hear nothing.
constexpr KeepAlive kPatient{absl::Milliseconds(20), absl::Minutes(10)};
constexpr KeepAlive kImpatient{absl::Milliseconds(20), absl::Milliseconds(200)};

// Less than gRPC's own timeout, 20 s: a call whose side has that one ends by its deadline.
absl::Duration BeforeGrpcDoes() {
  return testing::Patience(absl::Seconds(15));
}

// A call to a server of ours, over a network of its own, that goes on until the test or its deadline ends it.
class OpenCall {
 public:
  OpenCall(const KeepAlive& of_client, const KeepAlive& of_server, absl::Duration deadline)
      : server_(*RpcServer::Start(
            {.listen = "127.0.0.1:0", .services = {&service_}, .health_names = {}, .keep_alive = of_server})),
        network_(server_->address()),
        call_(std::async(std::launch::async, [=, this] { return Make(of_client, deadline); })) {
    // Who is impatient may give up before, on a machine that is so slow.
    EXPECT_TRUE(testing::Await("the server has the call", [&] { return reactor_ != nullptr || Ended(); }));
  }
  ~OpenCall() { End().IgnoreError(); }

  void StallNetwork(bool stalled) { network_.Stall(stalled); }
  // Whether the client has ended it.
  bool Ended() const { return call_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  // Whether it is over for the server.
  bool Cancelled() const { return reactor_ == nullptr || context_.load()->IsCancelled(); }
  // The server answers; what became of the call.
  absl::Status End() {
    if (auto* const reactor = reactor_.exchange(nullptr)) reactor->Finish(grpc::Status::OK);
    return call_.get();
  }

 private:
  absl::Status Make(const KeepAlive& keep_alive, absl::Duration deadline) const {
    grpc::ClientContext context;
    SetTimeout(context, deadline);
    v1::ListModelsResponse response;
    const auto stub = v1::Inference::NewStub(MakeChannel(network_.address(), keep_alive));
    return FromGrpcStatus(stub->ListModels(&context, {}, &response));
  }

  std::atomic<grpc::CallbackServerContext*> context_ = nullptr;
  std::atomic<grpc::ServerUnaryReactor*> reactor_ = nullptr;  // set behind the context
  testing::FakeInference service_{[this](grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor) {
    context_ = context;
    reactor_ = reactor;
  }};
  const std::unique_ptr<RpcServer> server_;
  testing::TcpProxy network_;
  std::shared_future<absl::Status> call_;
};

// Each side judges by its own timeout. The stall is over when both impatient ones have given up: the patient call has
// borne what ended the others.
TEST(StalledNetwork, EndsACallOnlyWhereATimeoutIsOver) {
  OpenCall patient(kPatient, kPatient, testing::LongestWait());
  OpenCall by_client(kImpatient, kPatient, BeforeGrpcDoes()), by_server(kPatient, kImpatient, BeforeGrpcDoes());
  for (OpenCall* call : {&patient, &by_client, &by_server}) call->StallNetwork(true);
  EXPECT_TRUE(testing::Await("a client gives up", [&] { return by_client.Ended(); }));
  EXPECT_TRUE(testing::Await("a server gives up", [&] { return by_server.Cancelled(); }));
  for (OpenCall* call : {&patient, &by_client, &by_server}) call->StallNetwork(false);
  EXPECT_EQ(patient.End(), absl::OkStatus());
  EXPECT_EQ(by_client.End().code(), absl::StatusCode::kUnavailable) << by_client.End();
  EXPECT_EQ(by_server.End().code(), absl::StatusCode::kUnavailable) << by_server.End();
}

}  // namespace
}  // namespace runahead
