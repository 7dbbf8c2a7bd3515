#include "server/base/metrics_server.h"

#include <httplib.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/address.h"

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
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("metrics_listen: cannot listen on ", (*first)->address(), ": Address already in")));
  EXPECT_EQ(MetricsServer::Start("localhost", registry).status().code(), absl::StatusCode::kInvalidArgument);
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
