// Clients that take nothing of their answers for a while, on a clock that the test holds; over real processes and
// networks in integration/slow_client_test.cc.
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "server/rpc/channel.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/router_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;

constexpr absl::Duration kStallTimeout = absl::Seconds(30);
constexpr int kTokens = 4000;
// As many are some 400 KB, for their logprobs: more than comes to a client that reads nothing.
constexpr int kTokensBeforeThePause = 2000;

class SlowClientTest : public testing::RouterFixture {
 protected:
  // A request whose client has read its first message. Its decode worker waits, and one message of the router does.
  std::unique_ptr<Call> InMidStream() {
    Start({.stall_timeout = kStallTimeout, .clock = &clock_});
    for (auto* workers : {&prefill_, &decode_}) {
      for (auto& worker : *workers) {
        worker->Change([](FakeBehaviour& b) {
          b.logprobs = 20;
          b.token = [](int64_t index) { return IdOf(index); };
          b.decode_until = kTokensBeforeThePause - 1;  // behind the tail's
        });
      }
    }
    stub_ = v1::Inference::NewStub(MakeChannel(server_->address(), kPublicKeepAlive, {}, {}, /*read_ahead=*/false));
    v1::GenerateRequest request = Ids(5, kTokens);
    request.mutable_stop()->set_ignore_eos(true);
    auto call = std::make_unique<Call>(*stub_, request);
    EXPECT_TRUE(call->Read()->has_started());
    EXPECT_TRUE(MetricBecomes("runahead_generated_tokens_total", kTokensBeforeThePause));
    return call;
  }
  void GoOn(int64_t decode_until) {
    decode_[0]->Change([&](FakeBehaviour& b) { b.decode_until = decode_until; });
  }
  static int32_t IdOf(int64_t index) { return 100 + static_cast<int32_t>(index % 200); }

  testing::FakeClock clock_;
};

TEST_F(SlowClientTest, APauseInMidStreamLosesNoTokenAndHoldsNoSequence) {
  const auto call = InMidStream();
  clock_.Advance(kStallTimeout - absl::Milliseconds(1));
  GoOn(kTokens);
  // The router has taken all of it, and waits for the client alone.
  EXPECT_TRUE(MetricBecomes("runahead_requests_total{code=\"OK\",model=\"tiny\"}", 1));
  decode_[0]->AwaitLeases(0);
  clock_.AwaitWaiters(1);
  EXPECT_EQ(Metric("runahead_requests_in_flight"), 1);

  const Got got = call->Finish();
  EXPECT_TRUE(got.status.ok()) << got.status;
  std::vector<int32_t> ids(kTokens);
  for (int i = 0; i < kTokens; ++i) ids[i] = IdOf(i);
  EXPECT_EQ(got.ids(), ids);
}

TEST_F(SlowClientTest, ALongerOneEndsTheStreamAndItsSequence) {
  const auto call = InMidStream();
  clock_.Advance(kStallTimeout);
  GoOn(kTokensBeforeThePause);  // one token more, behind which the worker waits again
  decode_[0]->AwaitLeases(0);
  EXPECT_TRUE(MetricBecomes("runahead_requests_in_flight", 0));
  const Got got = call->Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kCancelled) << got.status;
  EXPECT_EQ(Metric("runahead_requests_total{code=\"CANCELLED\",model=\"tiny\"}"), 1);
}

}  // namespace
}  // namespace runahead
