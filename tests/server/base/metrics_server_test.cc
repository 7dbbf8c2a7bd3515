#include "server/base/metrics_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/address.h"
#include "server/base/http_connection.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

TEST(MetricsServer, AnswersAScrapeOnAPortOfItsOwnChoice) {
  MetricRegistry registry("none");
  registry.AddCounter("x_total", "X").Increment(3);
  const auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto address = ParseHostPort((*server)->address());
  ASSERT_TRUE(address.ok());
  EXPECT_GT(address->port, 0);

  httplib::Client client(address->host, address->port);
  for (int i = 0; i < 3; ++i) {
    const auto metrics = client.Get("/metrics");
    ASSERT_TRUE(metrics);
    EXPECT_EQ(metrics->status, 200);
    EXPECT_THAT(metrics->get_header_value("Content-Type"), HasSubstr("text/plain; version=0.0.4"));
    EXPECT_THAT(metrics->body, HasSubstr("\nx_total 3\n"));
  }
  EXPECT_EQ(client.Get("/healthz")->body, "ok\n");
  EXPECT_EQ(client.Get("/nothing")->status, 404);
}

TEST(MetricsServer, RefusesATakenPortAndABadAddress) {
  MetricRegistry registry("none");
  const auto first = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(first.ok());
  const auto second = MetricsServer::Start((*first)->address(), registry);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(second.status().message()),
      HasSubstr(absl::StrCat("metrics_listen: cannot listen on ", (*first)->address(), ": Address already in")));
  EXPECT_EQ(MetricsServer::Start("localhost", registry).status().code(), absl::StatusCode::kInvalidArgument);
}

// A connection of a host's that says nothing, or the beginning of a request, or all of it.
int Connect(int port, const std::string& said, uint32_t host = INADDR_LOOPBACK) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in from = {};
  from.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(host);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof from), 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  EXPECT_EQ(send(fd, said.data(), said.size(), MSG_NOSIGNAL), static_cast<ssize_t>(said.size()));
  return fd;
}

TEST(MetricsServer, IdleConnectionsKeepNoScrapeWaiting) {
  MetricRegistry registry("none");
  const auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = ParseHostPort((*server)->address())->port;
  std::vector<int> idle;
  for (int i = 0; i < 64; ++i) idle.push_back(Connect(port, i % 2 == 0 ? "" : "GET /metrics HTTP/1.1\r\n"));
  // They came first: with a thread or two they would be waited out one after the other.
  httplib::Client client("127.0.0.1", port);
  client.set_read_timeout(20);
  const auto metrics = client.Get("/metrics");
  ASSERT_TRUE(metrics) << httplib::to_string(metrics.error());
  EXPECT_EQ(metrics->status, 200);
  EXPECT_EQ(client.Get("/healthz")->body, "ok\n");
  for (const int fd : idle) close(fd);
}

TEST(MetricsServer, ScrapesKeepNoProbeWaiting) {
  MetricRegistry registry("none");
  // Their text takes long to make: all of these ask while the first one waits.
  for (int i = 0; i < 20'000; ++i) registry.AddCounter("x_total", "X", {{"i", absl::StrCat(i)}});
  const ConnectionMetrics metrics(registry, "metrics");
  const auto server = MetricsServer::Start("127.0.0.1:0", registry, {nullptr, &metrics});
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = ParseHostPort((*server)->address())->port;
  std::vector<int> scrapes;
  for (int i = 0; i < 32; ++i) {
    for (const uint32_t host : {INADDR_LOOPBACK, INADDR_LOOPBACK + 1}) {
      scrapes.push_back(Connect(port, "GET /metrics HTTP/1.1\r\n\r\n", host));
    }
  }
  httplib::Client client("127.0.0.1", port);
  for (int i = 0; i < 3; ++i) {
    const auto health = client.Get("/healthz");
    ASSERT_TRUE(health) << httplib::to_string(health.error());
    EXPECT_EQ(health->body, "ok\n");
  }
  EXPECT_GT(metrics.refused(ConnectionRefusal::kAddress).Value(), 0);
  std::string told(12, ' ');
  EXPECT_EQ(recv(scrapes.back(), told.data(), told.size(), MSG_WAITALL), 12);
  EXPECT_EQ(told, "HTTP/1.1 503");
  for (const int fd : scrapes) close(fd);
}

TEST(MetricsServer, SaysWhetherTheProcessServes) {
  MetricRegistry registry("none");
  absl::Status ready = absl::UnavailableError("not serving");
  const auto server = MetricsServer::Start("127.0.0.1:0", registry, {.ready = [&ready] { return ready; }});
  ASSERT_TRUE(server.ok()) << server.status();
  httplib::Client client("127.0.0.1", ParseHostPort((*server)->address())->port);
  const auto not_yet = client.Get("/readyz");
  EXPECT_EQ(not_yet->status, 503);
  EXPECT_EQ(not_yet->body, "not serving\n");
  EXPECT_EQ(client.Get("/healthz")->status, 200) << "it lives";
  ready = absl::OkStatus();
  EXPECT_EQ(client.Get("/readyz")->body, "ok\n");
  EXPECT_EQ(client.Head("/readyz")->status, 200);
}

TEST(MetricsServer, SaysWhatIsWrongWithTheProcess) {
  MetricRegistry registry("none");
  absl::Status health = absl::UnavailableError("the port does not answer");
  const auto server = MetricsServer::Start("127.0.0.1:0", registry, {[&health] { return health; }});
  ASSERT_TRUE(server.ok()) << server.status();
  httplib::Client client("127.0.0.1", ParseHostPort((*server)->address())->port);
  const auto unwell = client.Get("/healthz");
  EXPECT_EQ(unwell->status, 503);
  EXPECT_EQ(unwell->body, "the port does not answer\n");
  EXPECT_EQ(client.Head("/healthz")->status, 503);
  EXPECT_EQ(client.Get("/metrics")->status, 200);
}

TEST(MetricsServer, TheOldestOfTooManyConnectionsGoes) {
  MetricRegistry registry("none");
  const ConnectionMetrics metrics(registry, "metrics");
  const auto server = MetricsServer::Start("127.0.0.1:0", registry, {nullptr, &metrics});
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = ParseHostPort((*server)->address())->port;
  std::vector<int> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(Connect(port, "GET /healthz HTTP/1.1\r\n"));
  httplib::Client client("127.0.0.1", port);
  EXPECT_EQ(client.Get("/healthz")->body, "ok\n");
  EXPECT_GE(metrics.refused(ConnectionRefusal::kAddress).Value(), 200 - 32 + 1);
  char byte;
  EXPECT_LE(recv(idle.front(), &byte, 1, 0), 0) << "the first one has to go";
  for (const int fd : idle) close(fd);
}

TEST(MetricsServer, EndsWhoSaysTooMuch) {
  MetricRegistry registry("none");
  const auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  const int fd = Connect(ParseHostPort((*server)->address())->port, "GET /" + std::string(32 << 10, 'x'));
  char byte;
  EXPECT_LE(recv(fd, &byte, 1, 0), 0);
  close(fd);
}

// However often something of it comes: a server ends it when its time is over.
TEST(MetricsServer, ARequestThatTricklesHasNoMoreTimeThanOneThatComesAtOnce) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor says(ends[1]);
  const absl::Time until = absl::UnixEpoch() + kHttpRequestTime;
  HttpConnection connection(1, Descriptor(ends[0]), "host", until);
  const std::string request = "GET /metrics HTTP/1.1\r\nX: trickles\r\n\r\n";
  for (size_t sent = 0; sent < request.size(); ++sent) {
    ASSERT_EQ(connection.state(), HttpConnection::State::kReading) << sent;
    EXPECT_EQ(connection.until(), until) << sent;
    ASSERT_EQ(send(says.get(), &request[sent], 1, MSG_NOSIGNAL), 1);
    connection.Read();
  }
  EXPECT_EQ(connection.state(), HttpConnection::State::kAsked);
  EXPECT_EQ(connection.request(), request);
  EXPECT_EQ(connection.until(), absl::InfiniteFuture()) << "it waits for us now";
  // And so it is with who takes its answer.
  const std::string answer(4 << 20, 'x');
  connection.Answer(answer, until + kHttpAnswerTime);
  std::string taken(64 << 10, ' ');
  for (size_t all = 0; all < answer.size();) {
    ASSERT_EQ(connection.state(), HttpConnection::State::kAnswering) << all;
    EXPECT_EQ(connection.until(), until + kHttpAnswerTime) << all;
    const ssize_t got = recv(says.get(), taken.data(), taken.size(), 0);
    ASSERT_GT(got, 0);
    all += static_cast<size_t>(got);
    connection.Write();
    if (connection.state() == HttpConnection::State::kEnded) break;
  }
  EXPECT_EQ(connection.state(), HttpConnection::State::kEnded);
}

TEST(MetricsServer, GivesItsPortBack) {
  MetricRegistry registry("none");
  auto first = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(first.ok());
  const std::string address = (*first)->address();
  first->reset();
  EXPECT_TRUE(MetricsServer::Start(address, registry).ok());
}

}  // namespace
}  // namespace runahead
