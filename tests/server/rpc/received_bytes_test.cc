#include "server/rpc/received_bytes.h"

#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "tests/server/rpc/loopback.h"

namespace runahead {
namespace {

// By the name that gRPC gives to the peer, over IPv4 and IPv6.
TEST(ReceivedBytes, CountsWhatCameOverAConnection) {
  for (const char* listen : {"127.0.0.1:0", "[::1]:0"}) {
    Mutex mu;
    std::string peer;
    testing::FakeInference service([&](grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor) {
      MutexLock lock(mu);
      peer = context->peer();
      reactor->Finish(grpc::Status::OK);
    });
    const auto server = RpcServer::Start({.listen = listen, .services = {&service}, .health_names = {}});
    if (!server.ok() && std::string(listen)[0] == '[') GTEST_SKIP() << "no IPv6 here";
    ASSERT_TRUE(server.ok()) << server.status();
    const auto channel = MakeChannel((*server)->address());
    ASSERT_TRUE(testing::CallListModels(channel).ok());
    const std::string name = [&] {
      MutexLock lock(mu);
      return peer;
    }();
    ReceivedBytes bytes;
    const std::optional<uint64_t> before = bytes.Of(name);
    ASSERT_TRUE(before) << name;
    EXPECT_GT(*before, 50u);
    ASSERT_TRUE(testing::CallListModels(channel).ok());
    EXPECT_GT(bytes.Of(name).value_or(0), *before);
    EXPECT_FALSE(bytes.Of("ipv4:127.0.0.1:1"));
    bytes.HangUp("ipv4:127.0.0.1:1");  // nobody's: nothing happens
    ASSERT_TRUE(testing::CallListModels(channel).ok());
    const uint64_t so_far = bytes.Of(name).value_or(0);
    EXPECT_GT(so_far, *before);
    bytes.HangUp(name);
    while (bytes.Of(name)) {
    }
    while (!testing::CallListModels(channel).ok()) {  // over another connection
    }
  }
}

}  // namespace
}  // namespace runahead
