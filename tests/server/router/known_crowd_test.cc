// Many requests at once of prompts that begin alike, where memory is for a few of them: each waits, asks again and
// finds other beginnings known than before.
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/server/router/known_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::Got;
using testing::kAnswer;
using testing::kInVain;

constexpr int kBegin = 100, kRequests = 48, kDifferent = 6;

// Parameter: whether decode workers compute rows of prompts; they lend what they keep in any case.
class KnownCrowdTest : public testing::KnownFixture, public ::testing::WithParamInterface<bool> {
 protected:
  void StartSmall() {
    Start({.decode = 2, .able = [](v1::Capabilities& able) {
             able.set_lends_beginnings(true);
             able.set_keeps_beginnings(GetParam());
             able.set_kv_capacity_tokens(3 * (kBegin + 60));
             able.set_max_batch(2);
           }});
    AwaitReady(2, 2);
  }
  // Equal ones, such as go on behind others', and one in kDifferent that begins with nobody.
  v1::GenerateRequest Nth(int i) {
    v1::GenerateRequest request = Ids(kBegin + (i % 4) * 10, kAnswer);
    if (i % kDifferent == 0) request.mutable_token_ids()->set_ids(0, 100 + i);
    return request;
  }
};

TEST_P(KnownCrowdTest, EachIsAnsweredAndEachChainBeginsWhereItsLeaseDoes) {
  StartSmall();
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < kRequests; ++i) calls.push_back(std::make_unique<Call>(*stub_, Nth(i), kInVain));
  for (int i = 0; i < kRequests; ++i) {
    const Got got = calls[i]->Finish();
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.ids(), Whole());
    const v1::Plan& plan = got.started().plan();
    if (plan.schedule() != "kvr") continue;
    EXPECT_EQ(std::accumulate(plan.parts().begin(), plan.parts().end(), plan.known_tokens()),
              Nth(i).token_ids().ids_size());
  }
  for (auto& worker : decode_) worker->AwaitLeases(0);
}

INSTANTIATE_TEST_SUITE_P(DecodeWorkersComputeRows, KnownCrowdTest, ::testing::Bool());

}  // namespace
}  // namespace runahead
