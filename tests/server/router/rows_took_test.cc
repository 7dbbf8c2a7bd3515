// What rests of prompts took on decode workers says who computes the next ones.
#include "tests/server/router/known_fixture.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;

// Half of a prompt is known, so its rest takes half as long as all of it on a chain of one.
class RowsTookTest : public testing::KnownFixture {
 protected:
  void SetUp() override {
    KnownFixture::SetUp();
    StartKeeping({.prefill = 1, .decode = 1, .stall_timeout = absl::Hours(24), .clock = &clock_});
    prefill_[0]->Change([](FakeBehaviour& b) { b.prefill_takes = absl::Seconds(1); });
    turn_ = FirstTurn();
  }
  v1::GenerateRequest HalfKnown(int32_t id) const {
    v1::GenerateRequest request = turn_;
    while (request.token_ids().ids_size() < 2 * testing::kKnownOfNext) request.mutable_token_ids()->add_ids(id);
    request.mutable_token_ids()->set_ids(testing::kKnownOfNext + 1, id);
    return request;
  }
  // By the sessions' clock, which stands still else.
  void ComputeARestIn(absl::Duration took, int32_t id) {
    decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = -1; });
    Call call(*stub_, HalfKnown(id), testing::kInVain);
    ASSERT_TRUE(call.Read()->has_started());
    decode_[0]->AwaitDecodes(++decoded_);
    clock_.Advance(took);
    decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
    ExpectContinuation(call.Finish());
  }

  testing::FakeClock clock_;
  v1::GenerateRequest turn_;
  int decoded_ = 1;
};

TEST_F(RowsTookTest, AChainIsTakenOnceOneTookLong) {
  ComputeARestIn(absl::Seconds(1), 50);
  ComputeARestIn(absl::Hours(1), 51);
  ExpectChain(Generate(HalfKnown(52)));
}

TEST_F(RowsTookTest, OneThatTookAsLongAsExpectedChangesNothing) {
  ComputeARestIn(absl::Seconds(1), 50);
  ComputeARestIn(absl::Seconds(1), 51);
  ExpectContinuation(Generate(HalfKnown(52)));
}

}  // namespace
}  // namespace runahead
