#include "server/rpc/port_probe.h"

#include <sys/socket.h>

#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/listening_sockets.h"
#include "tests/server/rpc/loopback.h"

namespace runahead {
namespace {

// `acceptance` is what the listener says before, and what it says after the question.
std::unique_ptr<PortProbe> ProbeOf(const SocketAddress& to, std::vector<Acceptance> acceptance = {{}, {}}) {
  const auto next = [acceptance = std::move(acceptance), at = size_t{0}]() mutable {
    return acceptance[at++ % acceptance.size()];
  };
  auto probe = PortProbe::Create(to, {[](const SocketAddress&) {}, next});
  EXPECT_TRUE(probe.ok()) << probe.status();
  return *std::move(probe);
}

SocketAddress AddressOf(const std::string& text) {
  return *NumericSocketAddress(*ParseHostPort(text));
}

TEST(PortProbe, IsAnsweredByAServerAgainAndAgain) {
  testing::FakeInference service(testing::FinishAtOnce);
  for (const char* const listen : {"127.0.0.1:0", "0.0.0.0:0", "[::]:0"}) {
    const auto server = RpcServer::Start({.listen = listen, .services = {&service}, .health_names = {}});
    ASSERT_TRUE(server.ok()) << server.status();
    const auto probe = ProbeOf(AddressOf((*server)->address()));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(probe->Ask(absl::Seconds(30)), absl::OkStatus()) << listen;
  }
}

TEST(PortProbe, SaysThatNobodyAnswers) {
  const auto sockets = ListenOn("listen", {"127.0.0.1", 0});  // the system lets who comes wait
  ASSERT_TRUE(sockets.ok());
  const auto probe = ProbeOf(OwnAddress(sockets->sockets.front()));
  EXPECT_EQ(probe->Ask(absl::Milliseconds(50)).message(), "the answer took too long");
}

// The system's queue before the port is full, so that nobody comes in.
TEST(PortProbe, OverloadIsNoDeafness) {
  const auto sockets = ListenOn("listen", {"127.0.0.1", 0});
  ASSERT_TRUE(sockets.ok());
  const Descriptor& port = sockets->sockets.front();
  ASSERT_EQ(listen(port.get(), 0), 0);
  const SocketAddress to = OwnAddress(port);
  const Descriptor first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(first.get(), to.get(), to.length), 0);
  const auto ask = [&](Acceptance before, Acceptance after) {
    return ProbeOf(to, {before, after})->Ask(absl::Milliseconds(50));
  };
  const Acceptance at_first{.all = 7, .expected = true};
  EXPECT_EQ(ask(at_first, {.all = 7, .expected = false}), absl::UnavailableError("connecting took too long"));
  EXPECT_EQ(ask(at_first, {.all = 9, .expected = false}),
            absl::ResourceExhaustedError("connecting took too long, while 2 other connections were accepted"));
  // It is accepted at last, and has no answer.
  EXPECT_EQ(ask(at_first, {.all = 9, .expected = true}), absl::UnavailableError("connecting took too long"));
}

TEST(PortProbe, ComesInWhenThereIsRoom) {
  const auto sockets = ListenOn("listen", {"127.0.0.1", 0});
  ASSERT_TRUE(sockets.ok());
  const Descriptor& port = sockets->sockets.front();
  ASSERT_EQ(listen(port.get(), 0), 0);
  const SocketAddress to = OwnAddress(port);
  const Descriptor first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(first.get(), to.get(), to.length), 0);
  // The second connection is announced: the first one makes room.
  int tries = 0;
  std::vector<Descriptor> accepted;
  const auto announce = [&](const SocketAddress&) {
    if (++tries == 2) accepted.emplace_back(accept4(port.get(), nullptr, nullptr, SOCK_CLOEXEC));
  };
  const auto probe = PortProbe::Create(to, {announce, [] { return Acceptance{}; }});
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_EQ((*probe)->Ask(absl::Milliseconds(700)).message(), "the answer took too long");
  EXPECT_EQ(tries, 2) << "the system itself would have tried again after a second";
}

TEST(PortProbe, SaysThatSomethingElseAnswers) {
  const auto sockets = ListenOn("listen", {"127.0.0.1", 0});
  ASSERT_TRUE(sockets.ok());
  std::thread web([&listener = sockets->sockets.front()] {
    Descriptor client;
    while (!client.valid()) client = Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string text = "HTTP/1.1 400 Bad Request\r\n\r\n";
    EXPECT_GT(send(client.get(), text.data(), text.size(), MSG_NOSIGNAL), 0);
  });
  const auto probe = ProbeOf(OwnAddress(sockets->sockets.front()));
  EXPECT_EQ(probe->Ask(absl::Seconds(30)).message(), "what answered does not speak HTTP/2");
  web.join();
}

TEST(PortProbe, SaysThatThePortIsClosed) {
  auto sockets = ListenOn("listen", {"127.0.0.1", 0});
  ASSERT_TRUE(sockets.ok());
  const auto probe = ProbeOf(OwnAddress(sockets->sockets.front()));
  sockets->sockets.clear();
  EXPECT_EQ(probe->Ask(absl::Seconds(30)).message(), "connecting: Connection refused");
}

}  // namespace
}  // namespace runahead
