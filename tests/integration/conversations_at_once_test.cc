// Several users at once, over several decode workers: every answer is the one of a cold run, and no more of a prompt is
// known than anybody had there.
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/conversation_fixture.h"

namespace runahead {
namespace {

using testing::Conversation;
using testing::ConversationCase;
using testing::DecodeKind;
using testing::KeptSequences;
using testing::NameOfCase;
using testing::TurnKind;

class ConversationsAtOnce : public testing::ConversationTest {
 protected:
  void ConverseAtOnce(const std::vector<TurnKind>& kinds);
  void ExpectKnownBesideOthers(const std::vector<KeptSequences::Ended>& ended, const std::vector<Answer>& answers,
                               size_t own);
};

// Who came first, of those that ask at once, decides what the others find: at most what these left there meanwhile.
void ConversationsAtOnce::ExpectKnownBesideOthers(const std::vector<KeptSequences::Ended>& ended,
                                                  const std::vector<Answer>& answers, size_t own) {
  const std::vector<int32_t> prompt(ended[own].ids.begin(), ended[own].ids.begin() + ended[own].prompt);
  const v1::Plan plan = PlanOf(answers[own]);
  KeptSequences beside = kept_;
  for (size_t other = 0; other < ended.size(); ++other) {
    if (other != own) beside.Keep(PlanOf(answers[other]).decode_worker(), ended[other]);
  }
  EXPECT_EQ(answers[own].finished.usage().cached_prompt_tokens(), plan.known_tokens());
  EXPECT_LE(plan.known_tokens(), beside.KnownOf(plan.decode_worker(), prompt).tokens.most);
  EXPECT_LE(plan.known_output_tokens(), plan.known_tokens());
  hits_ += plan.known_tokens() > 0;
  for (const std::string& worker : Workers()) {
    const KeptSequences::Known there = kept_.KnownOf(worker, prompt);
    // With windows a worker that has less of it may be asked first, for it has less to do, and in vain.
    const bool sure = !Hides() && Sure(TurnKind::kAppend, prompt, there);
    EXPECT_TRUE(plan.known_tokens() > 0 || !sure) << there.tokens.least;
  }
}

// Four users, two of whom ask the same. Each round begins when all have their answers to the one before.
void ConversationsAtOnce::ConverseAtOnce(const std::vector<TurnKind>& kinds) {
  const uint32_t seed = GetParam().seed;
  std::vector<Conversation> users;
  for (const uint32_t user : {0, 0, 1, 2}) users.emplace_back(seed + user, seed);
  for (size_t round = 0; round < kinds.size() && !HasFatalFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round, ": ", NameOf(kinds[round])));
    std::vector<v1::GenerateRequest> requests;
    std::vector<KeptSequences::Ended> ended;
    for (Conversation& user : users) {
      const std::vector<int32_t>& prompt = user.Ask(kinds[round]);
      requests.push_back(RequestOf(prompt, kinds[round], static_cast<int>(round), kAnswer));
      ended.push_back({.ids = prompt, .prompt = static_cast<int64_t>(prompt.size())});
    }
    std::vector<Answer> answers(users.size());
    std::vector<std::thread> threads;
    for (size_t user = 0; user < users.size(); ++user) {
      threads.emplace_back([&, user] { answers[user] = cluster_.Generate(requests[user]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t user = 0; user < users.size(); ++user) {
      ASSERT_TRUE(answers[user].status.ok()) << answers[user].status.error_message();
      const std::vector<int32_t>& ids = answers[user].ids;
      users[user].Answer(ids);
      ended[user].known = PlanOf(answers[user]).known_tokens();
      ended[user].ids.insert(ended[user].ids.end(), ids.begin(), ids.end() - 1);
      ended[user].certain = static_cast<int64_t>(ended[user].ids.size());
    }
    for (size_t user = 0; user < users.size(); ++user) {
      SCOPED_TRACE(absl::StrCat("user ", user));
      ExpectKnownBesideOthers(ended, answers, user);
      ExpectAsCold(answers[user], Cold(requests[user]), /*greedy=*/true, /*whole=*/true);
    }
    for (size_t user = 0; user < users.size(); ++user) kept_.Keep(PlanOf(answers[user]).decode_worker(), ended[user]);
  }
  EXPECT_GT(hits_, 0);
  cluster_.ExpectAllFree();
  std::cout << GetParam().name << ": " << hits_ << " of " << users.size() * kinds.size()
            << " prompts at once began with "
            << "what was known\n";
}

TEST_P(ConversationsAtOnce, AreThoseOfColdRuns) {
  using enum testing::TurnKind;
  ConverseAtOnce({kAppend, kAppend, kOther, kAppend, kBranch, kEdit, kAgain, kAppend});
}
INSTANTIATE_TEST_SUITE_P(
    Matrix, ConversationsAtOnce,
    ::testing::Values(ConversationCase{"Rows", SyntheticFamily::kLlama, 0, 2, 3, DecodeKind::kRows, 41},
                      ConversationCase{"Chains", SyntheticFamily::kQwen2, 0, 3, 2, DecodeKind::kChains, 42},
                      ConversationCase{"X", SyntheticFamily::kOpt, 0, 2, 2, DecodeKind::kX, 43},
                      ConversationCase{"Windows", SyntheticFamily::kGemma3, 100, 2, 2, DecodeKind::kRows, 44}),
    NameOfCase);

}  // namespace
}  // namespace runahead
