// A cluster under TLS: real processes, as their clients, their members and strangers find them.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/rpc/channel.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_ca.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using testing::CertificateOf;
using ::testing::HasSubstr;
using testing::MetricOf;
using ::testing::Not;
using testing::ServingProcess;
using testing::TestCa;
using testing::TestCertificate;
using testing::TestProcess;
using testing::TlsFolder;
using testing::With;

class TlsTest : public ::testing::Test {
 protected:
  std::vector<std::string> Worker(const std::vector<std::string>& more) const {
    return With({RUNAHEAD_WORKER, "--role", "both", "--threads", "1", "--dtype", "f32", "--model", model_}, more);
  }
  std::vector<std::string> Router(const std::string& worker, const std::vector<std::string>& more) const {
    return With({RUNAHEAD_ROUTER, "--model", model_, "--workers", absl::StrCat("role=both,address=", worker)}, more);
  }
  // All connections under TLS; clients need a certificate of clients_ca_.
  std::vector<std::string> Everything() const {
    return With(With(With({"--dtype", "f32", "--prefill", "2"}, cluster_.Flags("cluster-tls")), port_.Flags("tls")),
                {"--tls-client-auth", "require"});
  }
  static std::shared_ptr<grpc::ChannelCredentials> Client(const TestCa& servers, const TestCertificate& own = {}) {
    return grpc::SslCredentials({servers.cert(), own.key, own.cert});
  }
  // A stream of a client that has just come. Where it is not let in it tries again and again, for a few seconds.
  static bool IsAnswered(const std::string& router, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    const auto stub = v1::Inference::NewStub(MakeChannel(router, kPublicKeepAlive, {}, {.credentials = credentials}));
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(4));
    return GenerateOver(*stub, Uncached(RequestOf(SyntheticIds(40, 1), 5)), &context).status.ok();
  }
  // What the command line says, and its exit code.
  static std::string Said(const std::string& router, const std::vector<std::string>& flags, int expected_code) {
    TestProcess process(With({RUNAHEAD_BINARY, "models", "--router", router}, flags));
    EXPECT_EQ(process.Wait(), expected_code) << process.err();
    return expected_code == 0 ? process.out() : process.err();
  }

  const std::string model_ = WriteSynthetic(SmallModel(), "tls");
  const TestCa cluster_ca_, servers_ca_{"servers"}, clients_ca_{"clients"}, another_ca_{"another"};
  const TlsFolder cluster_{"cluster", cluster_ca_.Sign(), cluster_ca_.cert()};
  const TestCertificate servers_ = servers_ca_.Sign({.usage = "serverAuth"});
  const TlsFolder port_{"port", servers_, clients_ca_.cert()};
  const TestCertificate clients_ = clients_ca_.Sign({.usage = "clientAuth"});
  const TlsFolder client_{"client", clients_, servers_ca_.cert()};
};

TEST_F(TlsTest, AWholeClusterAnswersAndStrangersAreToldWhatIsMissing) {
  const auto credentials = Client(servers_ca_, clients_);
  LocalCluster cluster(model_, Everything(), {}, credentials);
  EXPECT_TRUE(cluster.Generate(Uncached(RequestOf(SyntheticIds(300, 1), 5))).status.ok());
  EXPECT_THAT(Said(cluster.router(), client_.Flags("tls"), 0), HasSubstr("prefill"));

  const std::string& router = cluster.router();
  EXPECT_THAT(Said(router, {}, 1), HasSubstr("it may speak TLS only: give --tls or --tls-ca"));
  const TlsFolder wrong_ca("wrong", clients_, another_ca_.cert());
  EXPECT_THAT(Said(router, wrong_ca.Flags("tls"), 1), HasSubstr("not of an authority that is trusted here (--tls-ca)"));
  EXPECT_THAT(Said(router, With(client_.Flags("tls"), {"--tls-server-name", "elsewhere"}), 1),
              HasSubstr("is for another name (--tls-server-name)"));
  const TlsFolder self_signed("self", another_ca_.Sign(), servers_ca_.cert());
  EXPECT_THAT(Said(router, self_signed.Flags("tls"), 1), HasSubstr("(--tls-cert)"));
  EXPECT_THAT(Said(router, {"--tls-ca", client_.files().ca}, 1), HasSubstr("want a certificate"));
  const TlsFolder ended("ended", clients_ca_.Sign({.ends = -absl::Minutes(1)}), servers_ca_.cert());
  EXPECT_THAT(Said(router, ended.Flags("tls"), 2), HasSubstr("ran out on")) << "it is told before it asks";
  EXPECT_FALSE(IsAnswered(router, Client(servers_ca_, clients_ca_.Sign({.ends = -absl::Minutes(1)}))));

  EXPECT_TRUE(cluster.Generate(Uncached(RequestOf(SyntheticIds(300, 2), 5))).status.ok())
      << "others have noticed nothing";
  const std::string log = cluster.Log();
  EXPECT_THAT(log, HasSubstr(", encrypted"));
  EXPECT_THAT(log, HasSubstr("handshakes failed, the last one with: "));
  EXPECT_THAT(log, Not(HasSubstr("PRIVATE")));
  const std::vector<std::string> lines = absl::StrSplit(servers_.key, '\n');
  EXPECT_THAT(log, Not(HasSubstr(lines[1])));
  EXPECT_GT(cluster.Metric("router", "runahead_tls_certificate_expiry_timestamp_seconds{certificate=\"tls\"}"), 1e9);
  EXPECT_GT(
      cluster.Metric("decode-0", "runahead_tls_certificate_expiry_timestamp_seconds{certificate=\"cluster_tls\"}"),
      1e9);
}

TEST_F(TlsTest, CertificatesAreReplacedUnderLoadAndNoneThatIsNoGood) {
  LocalCluster cluster(model_, Everything(), {}, Client(servers_ca_, clients_));
  std::atomic<bool> stop = false;
  std::atomic<int> answers = 0, failures = 0;
  std::thread load([&] {  // over the connection that is there
    while (!stop) ++(cluster.Generate(Uncached(RequestOf(SyntheticIds(60, 3), 20))).status.ok() ? answers : failures);
  });
  const auto reloads = [&](const std::string& process, const std::string& certificate, const std::string& result) {
    return cluster.Metric(
        process, absl::StrCat("runahead_tls_reloads_total{certificate=\"", certificate, "\",result=\"", result, "\"}"));
  };
  // Of the authorities as well: whoever comes from now on trusts the new one.
  port_.Replace(another_ca_.Sign());
  EXPECT_TRUE(Eventually([&] { return reloads("router", "tls", "ok") == 1; }));
  EXPECT_TRUE(Eventually([&] { return IsAnswered(cluster.router(), Client(another_ca_, clients_)); }));
  EXPECT_FALSE(IsAnswered(cluster.router(), Client(servers_ca_, clients_)));
  cluster_.Replace(cluster_ca_.Sign({.ends = absl::Hours(2)}));
  for (const char* const process : {"router", "prefill-0", "prefill-1", "decode-0"}) {
    EXPECT_TRUE(Eventually([&] { return reloads(process, "cluster_tls", "ok") == 1; })) << process;
  }

  port_.ReplaceKey(servers_.key);
  EXPECT_TRUE(Eventually([&] { return reloads("router", "tls", "error") == 1; }));
  EXPECT_TRUE(Eventually([&] { return IsAnswered(cluster.router(), Client(another_ca_, clients_)); })) << "it stays";
  cluster_.Replace(another_ca_.Sign());
  EXPECT_TRUE(Eventually([&] { return reloads("decode-0", "cluster_tls", "error") == 1; }));
  kill(cluster.pid("prefill-1"), SIGKILL);  // the others connect to what comes back
  cluster_.Replace(cluster_ca_.Sign());
  EXPECT_TRUE(cluster.GenerateEventually(Uncached(RequestOf(SyntheticIds(300, 4), 5))).status.ok());
  stop = true;
  load.join();
  EXPECT_GT(answers, 0);
  EXPECT_EQ(reloads("router", "tls", "ok"), 1);
  EXPECT_THAT(cluster.Log(), HasSubstr("; the certificate from before stays in use"));
}

TEST_F(TlsTest, AWorkerTakesOnlyARouterOfItsCluster) {
  const ServingProcess worker(Worker(cluster_.Flags("cluster-tls")));
  const TlsFolder other("other", another_ca_.Sign(), another_ca_.cert());
  // Each of these routers goes on trying, and says why.
  for (const auto& [flags, words] :
       {std::pair(std::vector<std::string>{}, "it may speak TLS only: give cluster_tls_cert"),
        {other.Flags("cluster-tls"), "not of an authority that is trusted here (cluster_tls_ca)"}}) {
    ServingProcess router(Router(worker.address, flags));
    EXPECT_TRUE(router.process.ReadErrUntil(words)) << router.process.err();
    EXPECT_EQ(MetricOf(router.metrics, "runahead_workers{role=\"decode\",state=\"ready\"}"), 0);
  }
  const ServingProcess router(Router(worker.address, cluster_.Flags("cluster-tls")));
  EXPECT_TRUE(Eventually([&] { return IsAnswered(router.address, nullptr); }));
  TestProcess health(
      With({RUNAHEAD_BINARY, "health", "--address", worker.address, "--tls-server-name", "runahead-cluster"},
           cluster_.Flags("tls")));
  EXPECT_EQ(health.Wait(), 0) << health.err();
}

TEST_F(TlsTest, ARouterUnderTlsTakesNoWorkerWithoutIt) {
  const ServingProcess worker(Worker({}));
  ServingProcess router(Router(worker.address, cluster_.Flags("cluster-tls")));
  EXPECT_TRUE(router.process.ReadErrUntil("it does not speak TLS: have it do so, or leave cluster_tls_cert out here"));
  EXPECT_EQ(MetricOf(router.metrics, "runahead_workers{role=\"decode\",state=\"ready\"}"), 0);
}

TEST_F(TlsTest, WhatIsNoGoodAtTheStartIsRefusedByName) {
  const auto complaint = [&](const std::vector<std::string>& args) {
    TestProcess process(args);
    EXPECT_EQ(process.Wait(), 1);
    EXPECT_THAT(process.err(), AllOf(Not(HasSubstr("PRIVATE")), Not(HasSubstr("loading"))));
    return process.err();
  };
  EXPECT_THAT(complaint(Router("127.0.0.1:1", {"--tls-cert", port_.files().cert})), HasSubstr("tls_key: is missing"));
  EXPECT_THAT(complaint(Router("127.0.0.1:1", {"--tls-cert", port_.files().cert, "--tls-key", client_.files().key})),
              HasSubstr(absl::StrCat("tls_key: ", client_.files().key, " does not fit the certificate in")));
  EXPECT_THAT(complaint(Router("127.0.0.1:1", port_.Flags("tls"))), HasSubstr("tls_ca: is for clients' certificates"));
  EXPECT_THAT(complaint(Worker({"--cluster-tls-cert", "/nowhere/x", "--cluster-tls-key", cluster_.files().key,
                                "--cluster-tls-ca", cluster_.files().ca})),
              HasSubstr("cluster_tls_cert: cannot read /nowhere/x"));
  const TlsFolder ended("ended", cluster_ca_.Sign({.ends = -absl::Minutes(1)}), cluster_ca_.cert());
  EXPECT_THAT(complaint(Worker(ended.Flags("cluster-tls"))), HasSubstr("ran out on"));
}

}  // namespace
}  // namespace runahead
