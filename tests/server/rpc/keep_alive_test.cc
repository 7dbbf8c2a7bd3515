// Connections whose network stands still for a while.
#include <future>
#include <thread>

#include "gtest/gtest.h"
#include "server/rpc/transport_options.h"
#include "tests/server/rpc/loopback.h"
#include "tests/testing/tcp_proxy.h"

namespace runahead {
namespace {

// What our own processes bear of each other, and hence clients of the router all the more.
constexpr absl::Duration kPause = absl::Seconds(10);

// A call to a server of ours, through a network that stands still while the call is under way.
absl::Status CallOverAStall(const KeepAlive& keep_alive) {
  std::promise<grpc::ServerUnaryReactor*> called;
  testing::FakeInference service(
      [&](grpc::CallbackServerContext*, grpc::ServerUnaryReactor* reactor) { called.set_value(reactor); });
  const auto server =
      RpcServer::Start({.listen = "127.0.0.1:0", .services = {&service}, .health_names = {}, .keep_alive = keep_alive});
  if (!server.ok()) return server.status();
  testing::TcpProxy proxy((*server)->address());
  auto call =
      std::async(std::launch::async, [&] { return testing::CallListModels(MakeChannel(proxy.address(), keep_alive)); });
  grpc::ServerUnaryReactor* const reactor = called.get_future().get();
  proxy.Stall(true);
  std::this_thread::sleep_for(absl::ToChronoMilliseconds(kPause));
  proxy.Stall(false);
  reactor->Finish(grpc::Status::OK);
  return call.get();
}

TEST(KeepAlive, AStallOfTenSecondsEndsNoCall) {
  auto of_clients = std::async(std::launch::async, [] { return CallOverAStall(kPublicKeepAlive); });
  EXPECT_EQ(CallOverAStall(kProcessKeepAlive), absl::OkStatus());
  EXPECT_EQ(of_clients.get(), absl::OkStatus());
}

}  // namespace
}  // namespace runahead
