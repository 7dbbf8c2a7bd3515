#include "server/rpc/tls_credentials.h"

#include <sys/resource.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "server/rpc/process_tls.h"
#include "tests/server/rpc/loopback.h"
#include "tests/testing/await.h"
#include "tests/testing/test_ca.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using testing::TestCa;
using testing::TestCertificate;

constexpr char kMember[] = "runahead-cluster";

TlsMaterial MaterialOf(const TestCertificate& certificate, const std::string& ca) {
  return {certificate.cert + certificate.key, ca, absl::InfiniteFuture()};
}

std::unique_ptr<TlsCredentials> CredentialsOf(const TestCertificate& certificate, const std::string& ca) {
  auto credentials = TlsCredentials::Create(MaterialOf(certificate, ca));
  EXPECT_TRUE(credentials.ok()) << credentials.status();
  return *std::move(credentials);
}

class TlsCredentialsTest : public ::testing::Test {
 protected:
  void Serve(std::shared_ptr<grpc::ServerCredentials> credentials) {
    RpcServerOptions options{.listen = "127.0.0.1:0", .services = {&service_}, .health_names = {}};
    options.credentials = std::move(credentials);
    auto server = RpcServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  absl::Status Call(const ChannelTls& tls) const {
    return testing::CallListModels(MakeChannel(server_->address(), kProcessKeepAlive, {}, tls));
  }
  // Of a client that trusts `ca`, and shows `own` where that is given.
  static ChannelTls Client(const std::string& ca, const TestCertificate& own = {}) {
    return {grpc::SslCredentials({ca, own.key, own.cert})};
  }
  static ChannelTls Member(const TestCertificate& certificate, const std::string& ca) {
    return {CredentialsOf(certificate, ca)->ForMembersChannel(kMember)};
  }

  const TestCa ca_, other_ca_{"another ca"};
  const TestCertificate ours_ = ca_.Sign();
  testing::FakeInference service_{testing::FinishAtOnce};
  std::unique_ptr<RpcServer> server_;
};

TEST_F(TlsCredentialsTest, AServerIsCalledByWhoTrustsItAndOverTlsOnly) {
  const auto credentials = CredentialsOf(ours_, "");
  Serve(credentials->ForServer(ClientAuth::kNone));
  EXPECT_EQ(Call(Client(ca_.cert())), absl::OkStatus());
  const absl::Status wrong_ca = Call(Client(other_ca_.cert()));
  EXPECT_EQ(wrong_ca.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(wrong_ca.message()), HasSubstr("certificate verify failed"));
  EXPECT_EQ(Call({}).code(), absl::StatusCode::kUnavailable) << "plain text";
  ChannelTls named = Client(ca_.cert());
  named.server_name = "somebody.else";
  EXPECT_EQ(Call(named).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Call(Client(ca_.cert())), absl::OkStatus()) << "nobody else noticed";
}

TEST_F(TlsCredentialsTest, AServerJudgesItsClientsCertificates) {
  const auto credentials = CredentialsOf(ours_, ca_.cert());
  Serve(credentials->ForServer(ClientAuth::kRequire));
  EXPECT_EQ(Call(Client(ca_.cert(), ca_.Sign())), absl::OkStatus());
  EXPECT_EQ(Call(Client(ca_.cert())).code(), absl::StatusCode::kUnavailable) << "none";
  EXPECT_EQ(Call(Client(ca_.cert(), other_ca_.Sign())).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Call(Client(ca_.cert(), ca_.Sign({.ends = -absl::Minutes(1)}))).code(), absl::StatusCode::kUnavailable);
  Serve(credentials->ForServer(ClientAuth::kRequest));
  EXPECT_EQ(Call(Client(ca_.cert())), absl::OkStatus());
  EXPECT_EQ(Call(Client(ca_.cert(), ca_.Sign())), absl::OkStatus());
  EXPECT_EQ(Call(Client(ca_.cert(), other_ca_.Sign())).code(), absl::StatusCode::kUnavailable);
}

TEST_F(TlsCredentialsTest, MembersTakeMembersOnly) {
  const TestCertificate stranger = ca_.Sign({.dns_names = {"localhost"}});
  const auto credentials = CredentialsOf(ours_, ca_.cert());
  Serve(credentials->ForMembersServer(kMember));
  EXPECT_EQ(Call(Member(ca_.Sign(), ca_.cert())), absl::OkStatus());
  for (const ChannelTls& tls : {Client(ca_.cert()), Client(ca_.cert(), stranger), Member(stranger, ca_.cert()),
                                Member(other_ca_.Sign(), ca_.cert()), ChannelTls{}}) {
    EXPECT_EQ(Call(tls).code(), absl::StatusCode::kUnavailable);
  }
  const auto impostor = CredentialsOf(stranger, ca_.cert());
  Serve(impostor->ForServer(ClientAuth::kNone));
  EXPECT_EQ(Call(Client(ca_.cert())), absl::OkStatus()) << "for others it is good";
  const absl::Status refused = Call(Member(ours_, ca_.cert()));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is not for runahead-cluster"));
}

TEST_F(TlsCredentialsTest, NewConnectionsTakeTheNewCertificateAndOldOnesGoOn) {
  const auto credentials = CredentialsOf(ours_, "");
  Serve(credentials->ForServer(ClientAuth::kNone));
  const auto old = MakeChannel(server_->address(), kProcessKeepAlive, {}, Client(ca_.cert()));
  EXPECT_EQ(testing::CallListModels(old), absl::OkStatus());
  ASSERT_EQ(credentials->Replace(MaterialOf(other_ca_.Sign(), "")), absl::OkStatus());
  // gRPC looks once a second.
  EXPECT_TRUE(
      testing::Await("new connections have the new certificate", [&] { return Call(Client(other_ca_.cert())).ok(); }));
  EXPECT_EQ(Call(Client(ca_.cert())).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(old->GetState(false), GRPC_CHANNEL_READY);
  EXPECT_EQ(testing::CallListModels(old), absl::OkStatus());
}

TEST_F(TlsCredentialsTest, TheProcessAsksItsOwnPortUnderTls) {
  const auto credentials = CredentialsOf(ours_, ca_.cert());
  RpcServerOptions options{.listen = "127.0.0.1:0", .services = {&service_}, .health_names = {}};
  options.credentials = credentials->ForMembersServer(kMember);
  options.port.patience = absl::Seconds(3);
  auto server = RpcServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const absl::Time until = MonotonicNow() + absl::Seconds(5);
  while (MonotonicNow() < until) {
    ASSERT_EQ((*server)->port_status(), absl::OkStatus());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

TEST_F(TlsCredentialsTest, WhatCannotBeKeptReplacesNothing) {
  const auto credentials = CredentialsOf(ours_, ca_.cert());
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{3, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status kept = credentials->Replace(MaterialOf(ca_.Sign(), ca_.cert()));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(kept.code(), absl::StatusCode::kResourceExhausted) << kept;
  EXPECT_EQ(credentials->Replace(MaterialOf(ca_.Sign(), ca_.cert())), absl::OkStatus());
  Serve(credentials->ForMembersServer(kMember));
  EXPECT_EQ(Call(Member(ours_, ca_.cert())), absl::OkStatus());
}

TEST(TlsCredentials, ACertificateHasRunOutBehindItsEnd) {
  const std::string certificate = TestCa().Sign({.ends = absl::Hours(1)}).cert;
  EXPECT_FALSE(HasRunOut(certificate, absl::Now() + absl::Minutes(59)));
  EXPECT_TRUE(HasRunOut(certificate, absl::Now() + absl::Minutes(61)));
  EXPECT_FALSE(HasRunOut("", absl::Now())) << "a client may have none";
}

TEST(ProcessTls, WithoutFilesThereIsNone) {
  const auto none = ProcessTls::Open({"tls", {}});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(*none, nullptr);
}

}  // namespace
}  // namespace runahead
