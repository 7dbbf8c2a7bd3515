// Links under TLS: what holds of every edge holds of them, and only members of the cluster are heard.
#include "worker/link/tcp/tls_stream.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/patience.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/test_ca.h"
#include "tests/worker/link/message/message_world.h"
#include "tests/worker/link/tcp/raw_socket.h"
#include "worker/link/tcp/link_tls.h"
#include "worker/link/tcp/tcp_engine.h"

namespace runahead::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kMember[] = "runahead-cluster";

const TestCa& ClusterCa() {
  static const TestCa& ca = *new TestCa;
  return ca;
}

TlsMaterial MaterialOf(const TestCertificate& certificate, const TestCa& ca = ClusterCa()) {
  return {certificate.cert + certificate.key, ca.cert(), absl::InfiniteFuture()};
}

std::shared_ptr<LinkTls> TlsOf(const TlsMaterial& material) {
  auto tls = std::make_shared<LinkTls>(kMember);
  tls->Use(material).IgnoreError();  // some are no good
  return tls;
}

// `tls` null: plain.
std::unique_ptr<MessageEngine> EngineOver(std::shared_ptr<const LinkTls> tls) {
  TcpOptions options;
  options.incarnation = RandomBits64();
  options.hello_timeout = absl::Seconds(60);
  options.tls = std::move(tls);
  auto engine = TcpEngine::Start(options);
  RUNAHEAD_CHECK(engine.ok());
  return *std::move(engine);
}

std::unique_ptr<MessageEngine> MembersEngine() {
  return EngineOver(TlsOf(MaterialOf(ClusterCa().Sign())));
}

std::unique_ptr<EdgeWorld> TlsWorld() {
  return std::make_unique<MessageWorld>([](int) { return nullptr; }, MembersEngine);
}

// OpenSSL's own atomics are among those that look like races.
using Worlds = std::vector<EdgeContract::ParamType>;
INSTANTIATE_TEST_SUITE_P(Tls, EdgeContract, ::testing::ValuesIn(kThreadSanitized ? Worlds{} : Worlds{TlsWorld}));

class TlsLink : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kThreadSanitized) GTEST_SKIP() << "OpenSSL was not built for it";
  }
  TlsLink() {
    here_->SetHandler(MessageKind::kEdgeControl, [this](const Message& message) {
      ++heard_;
      last_.Fire(absl::OkStatus());
      last_ = EventSource();
      from_ = message.from.incarnation;
    });
    here_->Connect(peer_->self(), [this](const absl::Status&) { ++deaths_; });
  }
  // What `stranger` hears of its connection's end, when it has said something here.
  absl::Status EndOf(MessageEngine& stranger) {
    EventSource dead;
    stranger.Connect(here_->self(), [dead](const absl::Status& why) { dead.Fire(why); });
    stranger.Send(here_->self(), MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
    return dead.event().Wait(LongestWait());
  }
  // A slice of `bytes` from there to here, as it came.
  static BufferRef Sent(MessageEngine& from, MessageEngine& to, const BufferRef& bytes) {
    const BufferRef into = Room(bytes.size);
    EventSource came;
    to.SetHandler(MessageKind::kSlice, [&](const Message& message) {
      message.payload->Accept({{into}}, [came, payload = message.payload](const absl::Status& status, const Came&) {
        payload->Answer(status.code());
        came.Fire(status);
      });
    });
    from.Send(to.self(), MessageKind::kSlice, "", bytes, [](const absl::Status&) {});
    EXPECT_EQ(came.event().Wait(LongestWait()), absl::OkStatus());
    to.SetHandler(MessageKind::kSlice, nullptr);
    return into;
  }

  const std::shared_ptr<LinkTls> tls_ = TlsOf(MaterialOf(ClusterCa().Sign()));
  std::atomic<int> heard_ = 0, deaths_ = 0;
  std::atomic<uint64_t> from_ = 0;
  EventSource last_;
  const std::unique_ptr<MessageEngine> here_ = EngineOver(tls_), peer_ = MembersEngine();
};

TEST_F(TlsLink, BytesOfAnySizeComeAsTheyWere) {
  for (const size_t bytes : {size_t{1}, size_t{16383}, size_t{16384}, size_t{16385}, size_t{3'000'001}}) {
    const BufferRef pattern = Pattern(bytes, bytes);
    EXPECT_EQ(Bytes(Sent(*peer_, *here_, pattern)), Bytes(pattern)) << bytes;
    EXPECT_EQ(Bytes(Sent(*here_, *peer_, pattern)), Bytes(pattern)) << bytes;
  }
}

TEST_F(TlsLink, KeysAreRenewedOnTheWay) {
  const auto often = std::make_shared<LinkTls>(kMember, /*key_bytes=*/100'000);
  ASSERT_EQ(often->Use(MaterialOf(ClusterCa().Sign())), absl::OkStatus());
  const auto sender = EngineOver(often);
  const BufferRef pattern = Pattern(3'000'001, 5);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Bytes(Sent(*sender, *here_, pattern)), Bytes(pattern));
    EXPECT_EQ(Bytes(Sent(*here_, *sender, pattern)), Bytes(pattern));
  }
}

TEST_F(TlsLink, WhoIsNoMemberIsNotHeardAndHearsWhy) {
  const auto wrong_ca = [](const CertificateOf& of) {
    static const TestCa& another = *new TestCa("another");
    return EngineOver(TlsOf(MaterialOf(another.Sign(of), another)));
  };
  EXPECT_THAT(std::string(EndOf(*wrong_ca({})).message()), HasSubstr("the peer's certificate is refused"));
  const auto self_signed = EngineOver(TlsOf({TestCa("self").Sign().cert + "no key", "", absl::InfiniteFuture()}));
  EXPECT_THAT(std::string(EndOf(*self_signed).message()), HasSubstr("TLS cannot begin"));
  const auto refused = EngineOver(TlsOf(MaterialOf(TestCa("another").Sign(), ClusterCa())));
  EXPECT_THAT(std::string(EndOf(*refused).message()), HasSubstr("refuses this worker's certificate"));
  for (const CertificateOf& of :
       {CertificateOf{.dns_names = {"localhost"}}, CertificateOf{.ends = -absl::Minutes(1)},
        CertificateOf{.usage = "serverAuth"}, CertificateOf{.dns_names = {}, .common_name = kMember}}) {
    const auto stranger = EngineOver(TlsOf(MaterialOf(ClusterCa().Sign(of))));
    EXPECT_THAT(std::string(EndOf(*stranger).message()), HasSubstr("refuses this worker's certificate"));
  }
  EXPECT_FALSE(EndOf(*EngineOver(nullptr)).ok()) << "plain";
  EXPECT_EQ(heard_, 0);
  EXPECT_EQ(deaths_, 0);
  EXPECT_EQ(Bytes(Sent(*peer_, *here_, Pattern(100, 1))), Bytes(Pattern(100, 1)));
}

TEST_F(TlsLink, TheLogSaysWhoWasRefusedAndWhy) {
  const auto stranger = EngineOver(TlsOf(MaterialOf(TestCa("another").Sign(), ClusterCa())));
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(EndOf(*stranger).ok());
  here_->SetHandler(MessageKind::kSlice, nullptr);  // behind what refused it
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("a connection from 127.0.0.1 ends before it has proved who it is: the peer's certificate"),
            HasSubstr("1 since this was said last")));
}

TEST_F(TlsLink, OneThatSpeaksPlainIsToldWhatIsMissingAtEitherEnd) {
  const auto plain = EngineOver(nullptr);
  EventSource dead;
  here_->Connect(plain->self(), [dead](const absl::Status& why) { dead.Fire(why); });
  const absl::Status here_why = dead.event().Wait(LongestWait());
  EXPECT_EQ(here_why.code(), absl::StatusCode::kUnavailable) << "it hangs up on what is no hello of its own";
}

TEST_F(TlsLink, GarbageEndsItsOwnConnectionOnly) {
  for (const std::string& garbage :
       {std::string(5000, 'x'), std::string("\x16\x03\x01\x40\x00", 5) + std::string(16384, '\0'),
        std::string("GET / HTTP/1.1\r\n\r\n")}) {
    RawSocket stranger(here_->self().address);
    stranger.Say(garbage);
    EXPECT_TRUE(stranger.Closed());
  }
  EXPECT_EQ(deaths_, 0);
  EXPECT_EQ(Bytes(Sent(*peer_, *here_, Pattern(100, 1))), Bytes(Pattern(100, 1)));
}

TEST_F(TlsLink, NewConnectionsTakeTheNewCertificateAndOldOnesGoOn) {
  EXPECT_EQ(Bytes(Sent(*peer_, *here_, Pattern(100, 1))), Bytes(Pattern(100, 1)));
  const TestCa next("the next ca");
  ASSERT_EQ(tls_->Use(MaterialOf(next.Sign(), next)), absl::OkStatus());
  EXPECT_EQ(tls_->Use({"no certificate", next.cert(), absl::InfiniteFuture()}).code(), absl::StatusCode::kInternal);
  const auto newer = EngineOver(TlsOf(MaterialOf(next.Sign(), next)));
  EXPECT_EQ(Bytes(Sent(*newer, *here_, Pattern(100, 2))), Bytes(Pattern(100, 2)));
  EXPECT_EQ(Bytes(Sent(*peer_, *here_, Pattern(100, 3))), Bytes(Pattern(100, 3))) << "over the connection that it has";
  EXPECT_EQ(deaths_, 0);
  EXPECT_FALSE(EndOf(*MembersEngine()).ok()) << "of the authority from before";
}

}  // namespace
}  // namespace runahead::testing
