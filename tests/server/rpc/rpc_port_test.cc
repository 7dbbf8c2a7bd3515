#include "server/rpc/rpc_port.h"

#include <sys/socket.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "tests/server/rpc/loopback.h"
#include "tests/testing/await.h"

namespace runahead {
namespace {

class RpcPortTest : public ::testing::Test {
 protected:
  void Start(RpcPortOptions port) {
    port.metrics = &metrics_;
    auto server = RpcServer::Start(
        {.listen = "127.0.0.1:0", .services = {&service_}, .health_names = {}, .port = std::move(port)});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  Descriptor Connect() const {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const SocketAddress to = *NumericSocketAddress(*ParseHostPort(server_->address()));
    EXPECT_EQ(connect(socket.get(), to.get(), to.length), 0);
    return socket;
  }
  // Until the other side closes.
  static std::string ReadAll(const Descriptor& socket) {
    std::string all;
    char bytes[256];
    for (ssize_t got; (got = recv(socket.get(), bytes, sizeof(bytes), 0)) > 0;) {
      all.append(bytes, static_cast<size_t>(got));
    }
    return all;
  }

  MetricRegistry registry_{"none"};
  const ConnectionMetrics metrics_{registry_, "grpc"};
  testing::FakeInference service_{testing::FinishAtOnce};
  std::unique_ptr<RpcServer> server_;
};

TEST_F(RpcPortTest, WhoSaysNothingIsNoClient) {
  RpcPortOptions port;
  port.greeting_time = absl::Milliseconds(300);
  Start(port);
  EXPECT_NE(ReadAll(Connect()), "") << "the server's settings";
}

TEST_F(RpcPortTest, AChannelWithoutCallsGoesOnOverAnotherConnection) {
  RpcPortOptions port;
  port.idle_time = absl::Seconds(1);
  Start(port);
  // As a client of anybody's, which gives a connection more time than ours do.
  const auto channel = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
  EXPECT_TRUE(testing::CallListModels(channel).ok());
  // Ready it was, for there was a call: it is not any more when its connection has gone.
  EXPECT_TRUE(
      channel->WaitForStateChange(GRPC_CHANNEL_READY, std::chrono::system_clock::now() + std::chrono::minutes(1)));
  EXPECT_TRUE(testing::CallListModels(channel).ok());
}

TEST_F(RpcPortTest, APortThatIsFullAnswersItsOwnProcess) {
  RpcPortOptions port;
  port.max_connections = 4;
  port.patience = absl::Seconds(3);
  Start(port);
  std::vector<Descriptor> crowd;
  EXPECT_TRUE(testing::Await("the port is full", [&] {
    crowd.push_back(Connect());
    return metrics_.refused(ConnectionRefusal::kAddress).Value() > 0;
  }));
  const absl::Time until = MonotonicNow() + absl::Seconds(4);
  while (MonotonicNow() < until) {
    EXPECT_EQ(server_->port_status(), absl::OkStatus());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace
}  // namespace runahead
