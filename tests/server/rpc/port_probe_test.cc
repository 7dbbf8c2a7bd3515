#include "server/rpc/port_probe.h"

#include <sys/socket.h>

#include <thread>

#include "gtest/gtest.h"
#include "server/base/listening_sockets.h"
#include "tests/server/rpc/loopback.h"

namespace runahead {
namespace {

std::unique_ptr<PortProbe> ProbeOf(const SocketAddress& to) {
  auto probe = PortProbe::Create(to, [](const SocketAddress&) {});
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
