// A beginning that many prompts have, such as a system prompt: it comes to be known to several decode workers by use.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/router/known_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::FakeWorker;
using testing::Got;
using testing::kAnswer;
using testing::kInVain;

constexpr int kDecodeWorkers = 3, kSystemTokens = 1000, kQuestionTokens = 50;

class HotBeginningTest : public testing::KnownFixture {
 protected:
  // Workers with so many slots each that hold each sequence at its second token; 0 says nothing of slots.
  void StartHolding(int slots, int64_t decode_until) {
    Start({.decode = kDecodeWorkers,
           .max_sessions = 256,
           .able =
               [slots](v1::Capabilities& able) {
                 able.set_keeps_beginnings(true);
                 able.set_max_batch(slots);
               },
           .before =
               [decode_until](FakeWorker& worker) {
                 worker.Change([decode_until](FakeBehaviour& b) {
                   b.decode_until = decode_until;
                   b.prefill_takes = absl::Seconds(1);
                 });
               }});
    AwaitReady(2, kDecodeWorkers);
  }
  // The system prompt, and another question each.
  v1::GenerateRequest Question(int nth) {
    v1::GenerateRequest request = Ids(kSystemTokens + kQuestionTokens, kAnswer);
    request.mutable_token_ids()->set_ids(kSystemTokens, 3 + nth % 250);
    return request;
  }
  static void LetDecode(FakeWorker& worker) {
    worker.Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
  }
  static void ExpectWhole(const Got& got) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.ids(), Whole());
  }
};

// No worker has a free slot while requests wait, though one alone has the beginning at first.
TEST_F(HotBeginningTest, OfManyRequestsAtOnceFillsAllWorkersAndIsKnownToSeveral) {
  constexpr int kRequests = 200, kSlots = 8;
  StartHolding(kSlots, /*decode_until=*/1);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < kRequests; ++i) calls.push_back(std::make_unique<Call>(*stub_, Question(i)));
  for (auto& worker : decode_) worker->AwaitLeases(kSlots);
  for (auto& worker : decode_) LetDecode(*worker);
  std::map<std::string, int> behind_known;  // by decode worker
  for (auto& call : calls) {
    const Got got = call->Finish();
    ExpectWhole(got);
    const v1::Plan& plan = got.started().plan();
    if (plan.known_tokens() >= kSystemTokens) ++behind_known[plan.decode_worker()];
  }
  EXPECT_GT(behind_known.size(), 1u);
  for (auto& worker : decode_) worker->AwaitLeases(0);
}

// The one that has it draws nothing: rests queue there, until a chain brings others their first token sooner. That
// leaves the beginning with another worker, which computes rests from then on.
TEST_F(HotBeginningTest, WhereRestsQueueIsComputedForAnotherWorkerThatKnowsItThen) {
  StartHolding(/*slots=*/0, /*decode_until=*/1 << 30);
  const Got first = Generate(Question(0));
  ExpectWhole(first);
  const std::string has = first.started().plan().decode_worker();
  for (auto& worker : decode_) {
    if (absl::StrCat("decode-", &worker - decode_.data()) != has) continue;
    worker->Change([](FakeBehaviour& b) { b.decode_until = -1; });
  }
  std::vector<std::unique_ptr<Call>> queue;
  bool computed = false, known = false;
  for (int i = 1; i < 100 && !known; ++i) {
    auto call = std::make_unique<Call>(*stub_, Question(i), kInVain);
    const std::optional<v1::GenerateResponse> response = call->Read();
    ASSERT_TRUE(response.has_value() && response->has_started());
    const v1::Plan plan = response->started().plan();
    if (plan.decode_worker() == has) {
      queue.push_back(std::move(call));
      continue;
    }
    ExpectWhole(call->Finish());
    computed |= plan.known_tokens() == 0;
    known = plan.known_tokens() >= kSystemTokens;
  }
  EXPECT_FALSE(queue.empty());
  EXPECT_TRUE(computed && known);
  for (auto& worker : decode_) LetDecode(*worker);
  for (auto& call : queue) ExpectWhole(call->Finish());
}

}  // namespace
}  // namespace runahead
