#include "server/rpc/rpc_listener.h"

#include <sys/resource.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "tests/testing/await.h"
#include "tests/testing/await_change.h"

namespace runahead {
namespace {

constexpr int kReceiveBuffer = 32 << 10;  // less than any system gives by itself

class RpcListenerTest : public ::testing::Test {
 protected:
  RpcListenerTest() : sockets_(*ListenOn("listen", {"127.0.0.1", 0})), to_(OwnAddress(sockets_.sockets.front())) {}

  void Start(int max_connections) {
    listener_.emplace(std::move(sockets_),
                      RpcListenerOptions{max_connections, absl::Seconds(20), &metrics_, kReceiveBuffer},
                      [this](Descriptor connection, const Descriptor&) {
                        MutexLock lock(mu_);
                        taken_.push_back(std::move(connection));
                        changed_.NotifyAll();
                      });
  }
  // From an address of this host, bound before it connects; the listener is told to expect it if `expected`.
  Descriptor Connect(const char* from = "127.0.0.1", bool expected = false) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const SocketAddress own = *NumericSocketAddress({from, 0});
    EXPECT_EQ(bind(socket.get(), own.get(), own.length), 0);
    if (expected) listener_->ExpectFrom(OwnAddress(socket));
    EXPECT_EQ(connect(socket.get(), to_.get(), to_.length), 0);
    return socket;
  }
  void AwaitTaken(size_t count) {
    MutexLock lock(mu_);
    testing::ChangeWait wait(absl::StrCat(count, " connections are taken"));
    while (taken_.size() < count) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }
  size_t Taken() {
    MutexLock lock(mu_);
    return taken_.size();
  }
  void EndTaken() {
    MutexLock lock(mu_);
    taken_.clear();
  }
  // Waits until the other side says something or has closed.
  static bool WasClosed(const Descriptor& client) {
    char byte;
    return recv(client.get(), &byte, 1, 0) <= 0;
  }
  double Refused(ConnectionRefusal why) const { return metrics_.refused(why).Value(); }

  MetricRegistry registry_{"none"};
  const ConnectionMetrics metrics_{registry_, "grpc"};
  ListeningSockets sockets_;
  const SocketAddress to_;
  Mutex mu_;
  CondVar changed_;
  std::vector<Descriptor> taken_ RUNAHEAD_GUARDED_BY(mu_);
  std::optional<RpcListener> listener_;  // its thread uses what is above
};

// gRPC's buffers grow with what comes at once (RpcPortOptions).
TEST_F(RpcListenerTest, TheKernelKeepsAsMuchOfAConnectionAsItIsAskedTo) {
  Start(4);
  const Descriptor client = Connect();
  AwaitTaken(1);
  MutexLock lock(mu_);
  int bytes = 0;
  socklen_t size = sizeof(bytes);
  ASSERT_EQ(getsockopt(taken_[0].get(), SOL_SOCKET, SO_RCVBUF, &bytes, &size), 0);
  EXPECT_LE(bytes, 2 * kReceiveBuffer) << "the kernel counts twice what it was asked for";
}

TEST_F(RpcListenerTest, OneAddressHasThreeQuartersAndAllHaveAll) {
  Start(4);
  std::vector<Descriptor> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(Connect());
  AwaitTaken(3);
  EXPECT_TRUE(WasClosed(Connect()));
  EXPECT_EQ(Refused(ConnectionRefusal::kAddress), 1);
  clients.push_back(Connect("127.0.0.2"));
  AwaitTaken(4);
  EXPECT_TRUE(WasClosed(Connect("127.0.0.3")));
  EXPECT_EQ(Refused(ConnectionRefusal::kLimit), 1);

  const Descriptor probe = Connect("127.0.0.1", /*expected=*/true);
  AwaitTaken(5);
  EndTaken();  // as gRPC closes what its client has left
  // It looks for those that have gone once in 20 ms.
  EXPECT_TRUE(testing::Await("a client is taken again", [&] {
    clients.push_back(Connect());
    return Taken() > 0;
  }));
}

TEST_F(RpcListenerTest, LeavesTheLastDescriptorsToTheProcess) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit low = before;
  low.rlim_cur = 128;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  Start(1000);
  // Both ends are this process's: a client takes one as well.
  std::vector<Descriptor> clients;
  while (Refused(ConnectionRefusal::kDescriptors) == 0) {
    clients.push_back(Connect());
    ASSERT_TRUE(testing::Await("it has taken or refused the last client",
                               [&] { return Taken() + Refused(ConnectionRefusal::kDescriptors) >= clients.size(); }));
  }
  const size_t taken = Taken();
  EXPECT_GT(taken, 10u);
  const Descriptor probe = Connect("127.0.0.1", /*expected=*/true);
  AwaitTaken(taken + 1);
  EXPECT_LT(probe.get(), 128 - 16) << "there is room for what the process itself opens";
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(RpcListenerTest, GivesItsPortBack) {
  Start(4);
  const Descriptor client = Connect();
  AwaitTaken(1);
  listener_->Close();
  EXPECT_TRUE(ListenOn("listen", {"127.0.0.1", PortOf(to_.storage)}).ok());
}

}  // namespace
}  // namespace runahead
