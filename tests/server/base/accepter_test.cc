#include "server/base/accepter.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <vector>

#include "gtest/gtest.h"
#include "server/base/listening_sockets.h"

namespace runahead {
namespace {

Descriptor NewSocket() {
  return Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

// While it lives, this process has no descriptor left.
class NoneLeft {
 public:
  NoneLeft() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit low = before_;
    low.rlim_cur = 256;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (;;) {
      Descriptor taken(open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!taken.valid()) break;
      taken_.push_back(std::move(taken));
    }
  }
  ~NoneLeft() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<Descriptor> taken_;
};

class AccepterTest : public ::testing::Test {
 protected:
  AccepterTest() : sockets_(*ListenOn("listen", {"127.0.0.1", 0})) {
    for (const Descriptor& client : clients_) {
      const SocketAddress to = OwnAddress(listener());
      EXPECT_EQ(connect(client.get(), to.get(), to.length), 0);
    }
  }
  const Descriptor& listener() const { return sockets_.sockets.front(); }

  const ListeningSockets sockets_;
  const Descriptor clients_[3] = {NewSocket(), NewSocket(), NewSocket()};
  Accepter accepter_;
};

TEST_F(AccepterTest, TakesOneAfterTheOtherAndSaysWhoItIs) {
  for (const Descriptor& client : clients_) {
    const auto next = accepter_.Next(listener());
    ASSERT_TRUE(next.ok() && next->has_value());
    EXPECT_EQ(PortOf((*next)->peer.storage), PortOf(OwnAddress(client).storage));
    EXPECT_NE(fcntl((*next)->socket.get(), F_GETFL) & O_NONBLOCK, 0);
  }
  const auto none = accepter_.Next(listener());
  EXPECT_TRUE(none.ok() && !none->has_value());
}

TEST_F(AccepterTest, TakesOneAtATimeWhenNoDescriptorIsLeft) {
  const NoneLeft none_left;
  for (int i = 0; i < 2; ++i) {
    const auto next = accepter_.Next(listener());
    EXPECT_TRUE(next.ok() && next->has_value()) << next.status();
    // While that one has the last descriptor there is none for another.
    EXPECT_EQ(accepter_.Next(listener()).status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_TRUE(accepter_.Next(listener())->has_value());
}

TEST_F(AccepterTest, SaysThatTheListenerHasEnded) {
  ASSERT_EQ(shutdown(listener().get(), SHUT_RDWR), 0);
  EXPECT_EQ(accepter_.Next(listener()).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace runahead
