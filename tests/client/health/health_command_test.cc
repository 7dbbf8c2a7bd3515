// `runahead health` as a program, against a server of ours.
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/metrics_server.h"
#include "server/rpc/server.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using testing::TestProcess;

class HealthCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.health_names = {"runahead.v1.Inference"};
    auto server = RpcServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  static int Health(const std::vector<std::string>& flags, std::string* err = nullptr) {
    std::vector<std::string> args = {RUNAHEAD_BINARY, "health"};
    args.insert(args.end(), flags.begin(), flags.end());
    TestProcess health(args);
    const int code = health.Wait();
    if (err != nullptr) *err = health.err();
    return code;
  }

  std::unique_ptr<RpcServer> server_;
};

TEST_F(HealthCommandTest, FollowsWhatTheServerSays) {
  std::string err;
  EXPECT_EQ(Health({"--address", server_->address()}, &err), 1);
  EXPECT_THAT(err, HasSubstr("does not serve yet"));
  server_->SetServing(true);
  EXPECT_EQ(Health({"--address", server_->address()}), 0);
  EXPECT_EQ(Health({"--address", server_->address(), "--service", "runahead.v1.Inference"}), 0);
  server_->SetServing(false);
  EXPECT_EQ(Health({"--address", server_->address(), "--service", "runahead.v1.Inference"}), 1);
}

TEST_F(HealthCommandTest, AsksTheMetricsPortWhereItIsTold) {
  MetricRegistry registry("none");
  const auto metrics = MetricsServer::Start("127.0.0.1:0", registry, {.ready = [this] { return server_->serving(); }});
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  std::string err;
  EXPECT_EQ(Health({"--metrics", (*metrics)->address()}, &err), 1);
  EXPECT_THAT(err, HasSubstr("not serving"));
  server_->SetServing(true);
  EXPECT_EQ(Health({"--metrics", (*metrics)->address()}), 0);
  EXPECT_EQ(Health({"--metrics", (*metrics)->address(), "--address", server_->address()}), 2) << "one of them";
  server_->Drain(absl::ZeroDuration());
  EXPECT_EQ(Health({"--metrics", (*metrics)->address()}), 1);
}

TEST_F(HealthCommandTest, AFileThatIsNoneIsWrongUsage) {
  std::string err;
  EXPECT_EQ(Health({"--address", server_->address(), "--tls-ca", "/nowhere/ca"}, &err), 2);
  EXPECT_THAT(err, HasSubstr("--tls-ca: cannot read /nowhere/ca"));
  EXPECT_EQ(Health({"--address", server_->address(), "--tls-cert", "/nowhere/c"}, &err), 2);
  EXPECT_THAT(err, HasSubstr("--tls-key: is missing: give --tls-cert, --tls-key"));
}

TEST_F(HealthCommandTest, AnUnknownServiceDoesNotServe) {
  server_->SetServing(true);
  std::string err;
  EXPECT_EQ(Health({"--address", server_->address(), "--service", "runahead.v1.Nothing"}, &err), 1);
  EXPECT_THAT(err, HasSubstr("NOT_FOUND"));
}

TEST_F(HealthCommandTest, NobodyThereIsNotServing) {
  const std::string address = server_->address();
  server_.reset();
  const absl::Time begin = absl::Now();
  std::string err;
  EXPECT_EQ(Health({"--address", address}, &err), 1);
  EXPECT_THAT(err, HasSubstr("UNAVAILABLE"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
}

TEST_F(HealthCommandTest, AnAddressThatIsNoneIsWrongUsage) {
  std::string err;
  EXPECT_EQ(Health({"--address", "nowhere"}, &err), 2);
  EXPECT_THAT(err, HasSubstr("--address"));
  EXPECT_EQ(Health({}, &err), 2);
}

}  // namespace
}  // namespace runahead
