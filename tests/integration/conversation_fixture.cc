#include "tests/integration/conversation_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <numeric>
#include <utility>

#include "server/rpc/channel.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/patience.h"
#include "tests/testing/small_family.h"

namespace runahead::testing {
namespace {

// Of log probabilities of a token: f32 gives about 1e-5, int8 what the arithmetic of decode and that of prefill differ.
constexpr float kNear = 1e-3f, kNearInInt8 = 0.5f;
constexpr int kTopK = 4, kLogprobs = kTopK + 1;

std::string WriteModel(const ConversationCase& test) {
  SyntheticModel model = SmallModelOf(test.family, test.window);
  if (test.kind == DecodeKind::kX) model.kv_heads = model.heads;  // X is half as large as KV
  if (test.int8) model.SetWeightType(WeightType::kQ8_0);
  return WriteSynthetic(model, absl::StrCat("conversation_", test.name));
}

// Much slower than any machine: what bringing KV took counts where it is later than expected alone. By these times
// whoever knows a beginning is sooner. Of rests up to some 30 tokens the decode worker itself is, or a chain of one;
// of longer ones a chain of two, and then of three.
std::string WriteTable(const ConversationCase& test) {
  constexpr double kToken = 0.02;  // seconds, on one worker
  const std::string path = absl::StrCat(::testing::TempDir(), "/conversation_", test.name, ".yaml");
  std::ofstream table(path);
  table << "version: 1\nschedule: kvr\nentries:\n";
  for (const int64_t tokens : {16, 4096}) {
    const auto entry = [&](int width, const char* fractions, double counted) {
      if (width > test.width) return;
      table << absl::StrCat("  - {width: ", width, ", tokens: ", tokens, ", fractions: [", fractions,
                            "], predicted_ttft_s: ", kToken * counted, "}\n");
    };
    const auto all = static_cast<double>(tokens);
    entry(1, "1", all);
    entry(2, "0.56, 0.44", 6 + 0.7 * all);
    entry(3, "0.4, 0.33, 0.27", 10 + 0.55 * all);
  }
  return path;
}

std::vector<std::string> ArgumentsOf(const ConversationCase& test) {
  std::vector<std::string> arguments = {
      "--prefill", absl::StrCat(test.width),   "--decode",     absl::StrCat(test.decode),
      "--dtype",   test.int8 ? "int8" : "f32", "--experiments"};
  const auto add = [&](const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
  };
  if (test.table) add({"--table", WriteTable(test)});
  if (test.kind == DecodeKind::kChains) add({"--step-rows", "off"});
  if (test.kind == DecodeKind::kLink || test.kind == DecodeKind::kX) {
    add({"--emulated-link-gbps", "50", "--kv-device-budget", "1MiB", "--host-lane", "off"});
    add({"--recompute", test.kind == DecodeKind::kX ? "128" : "off"});
  }
  return arguments;
}

}  // namespace

ConversationTest::ConversationTest()
    : cluster_(WriteModel(GetParam()), ArgumentsOf(GetParam())), conversation_(GetParam().seed, GetParam().seed) {
  const std::string ready = "runahead_workers{role=\"prefill\",state=\"ready\"}";
  EXPECT_TRUE(Eventually([&] { return cluster_.Metric("router", ready) == GetParam().width; }));
}

v1::GenerateRequest ConversationTest::RequestOf(const std::vector<int32_t>& prompt, TurnKind kind, int turn,
                                                int tokens) {
  v1::GenerateRequest request = runahead::RequestOf(prompt, kind == TurnKind::kOneToken ? 1 : tokens);
  request.set_no_cache(kind == TurnKind::kNoCache);
  request.mutable_sampling()->set_seed(turn);
  request.mutable_sampling()->set_logprobs(kLogprobs);
  return request;
}

// Of a chain from the first token, as wide as the line is.
Answer ConversationTest::Cold(v1::GenerateRequest request) {
  request.set_no_cache(true);
  request.mutable_experiment()->set_width(GetParam().width);
  const Answer cold = cluster_.Generate(request);
  EXPECT_TRUE(cold.status.ok()) << cold.status.error_message();
  EXPECT_EQ(cold.finished.usage().cached_prompt_tokens(), 0);
  EXPECT_EQ(cold.started.plan().workers_size(), GetParam().width);
  return cold;
}

// Drawn from the same likelihoods, it may be a neighbour where the draw falls between two: once, of all draws of a
// case.
void ConversationTest::ExpectDrawnAlike(const v1::TokenLogprobs& token, const v1::TokenLogprobs& cold) {
  EXPECT_LE(++drawn_apart_, 1);
  bool there = false;
  for (const v1::TokenLogprob& each : cold.top()) {
    there = there || (each.id() == token.top(0).id() && std::abs(each.logprob() - token.top(0).logprob()) < kNear);
  }
  EXPECT_TRUE(there) << token.ShortDebugString() << "\n" << cold.ShortDebugString();
}

void ConversationTest::ExpectAsCold(const Answer& answer, const Answer& cold, bool greedy, bool whole) {
  ASSERT_LE(answer.ids.size(), cold.ids.size());
  ASSERT_EQ(answer.logprobs.size(), answer.ids.size());
  ASSERT_EQ(cold.logprobs.size(), cold.ids.size());
  EXPECT_TRUE(!whole || answer.ids.size() == cold.ids.size());
  const bool same = std::equal(answer.ids.begin(), answer.ids.end(), cold.ids.begin());
  maybe_answered_ = same ? cold.ids : answer.ids;
  for (size_t i = 0; i < answer.ids.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("token ", i));
    const v1::TokenLogprobs& token = answer.logprobs[i];
    const v1::TokenLogprobs& expected = cold.logprobs[i];
    if (greedy) rule_.Add(answer.ids[i], {cold.ids[i], expected.top(0).logprob() - expected.top(1).logprob()});
    if (answer.ids[i] != cold.ids[i]) {  // all that follows goes on from it
      if (!greedy) ExpectDrawnAlike(token, expected);
      return;
    }
    EXPECT_NEAR(token.top(0).logprob(), expected.top(0).logprob(), GetParam().int8 ? kNearInInt8 : kNear);
  }
}

Answer ConversationTest::Generate(const v1::GenerateRequest& request, bool cancel) {
  if (!cancel) return cluster_.Generate(request);
  grpc::ClientContext context;
  SetTimeout(context, Patience(LocalCluster::kPatience));
  const Answer answer = cluster_.Generate(request, &context, [&](size_t tokens) {
    if (tokens >= kSeenOfCancelled) context.TryCancel();
  });
  EXPECT_GE(answer.ids.size(), static_cast<size_t>(kSeenOfCancelled));
  cluster_.ExpectAllFree();  // nothing of it runs any more
  return answer;
}

// Behind positions of prompts alone, whoever computes the rest and however it is cut, an answer is the cold one to the
// bit.
void ConversationTest::ExpectBits(const Answer& answer, const Answer& cold) {
  ASSERT_EQ(answer.ids, cold.ids);
  ASSERT_EQ(answer.logprobs.size(), cold.logprobs.size());
  for (size_t i = 0; i < cold.logprobs.size(); ++i) {
    EXPECT_EQ(answer.logprobs[i].SerializeAsString(), cold.logprobs[i].SerializeAsString()) << "token " << i;
  }
  ++bitwise_;
}

// Whether it must have begun with what a worker knows for certain. By the table that is sooner always. Who has more of
// it, but behind what windows hid, may be asked in its place, in vain.
bool ConversationTest::Sure(TurnKind kind, const std::vector<int32_t>& prompt,
                            const KeptSequences::Known& known) const {
  if (kind == TurnKind::kNoCache || known.tokens.least == 0) return false;
  for (const std::string& worker : Workers()) {
    const KeptSequences::Known there = kept_.KnownOf(worker, prompt);
    if (Hides() && !there.whole && there.tokens.most >= known.tokens.least) return false;
  }
  return GetParam().table;  // by what prompts and rests took lately, a chain may be the sooner one
}

// What was known is what the worker that had it has for certain, at least, and what it may have, at most.
void ConversationTest::ExpectKnown(TurnKind kind, const std::vector<int32_t>& prompt, const Answer& answer) {
  const v1::Plan plan = PlanOf(answer);
  const bool continued = plan.schedule() == "continuation";
  const int64_t tokens = static_cast<int64_t>(prompt.size());
  const int64_t known = plan.known_tokens();
  EXPECT_EQ(plan.workers_size() == 0, continued);
  EXPECT_TRUE(ComputesRows() || !continued);
  EXPECT_LE(plan.workers_size(), GetParam().width);
  const int64_t computed = std::accumulate(plan.parts().begin(), plan.parts().end(), int64_t{0});
  EXPECT_TRUE(continued || computed == tokens - known) << plan.ShortDebugString();
  if (answer.status.ok()) {
    EXPECT_EQ(answer.finished.usage().prompt_tokens(), tokens);
    EXPECT_EQ(answer.finished.usage().cached_prompt_tokens(), known);
  }
  EXPECT_TRUE(kind != TurnKind::kNoCache || known == 0);
  if (known == 0) {
    EXPECT_EQ(plan.known_output_tokens(), 0);
    for (const std::string& worker : Workers()) {
      const KeptSequences::Known there = kept_.KnownOf(worker, prompt);
      EXPECT_FALSE(Sure(kind, prompt, there)) << there.tokens.least << " tokens are known at " << worker;
    }
    return;
  }
  ++hits_;
  known_outputs_ += plan.known_output_tokens();
  const KeptSequences::Count there = kept_.KnownOf(plan.decode_worker(), prompt).tokens;
  EXPECT_GE(known, there.least);
  EXPECT_LE(known, there.most);
  const KeptSequences::Count outputs =
      kept_.OutputsOf(plan.decode_worker(), prompt, std::min<int64_t>(known, there.most));
  EXPECT_GE(plan.known_output_tokens(), outputs.least);
  EXPECT_LE(plan.known_output_tokens(), outputs.most);
}

// An answer of one token. Where a chain drew it the prompt goes to a decode worker behind it: the one that had its
// beginning, or some one.
void ConversationTest::KeepOneToken(const KeptSequences::Ended& ended, const v1::Plan& plan) {
  const bool known_where = !plan.decode_worker().empty() || GetParam().decode == 1;
  KeptSequences::Ended kept = ended;
  kept.certain = GetParam().window == 0 && known_where ? ended.prompt : 0;
  if (kept.certain > 0 && plan.schedule() != "continuation") {
    EXPECT_TRUE(Eventually([&] { return IndexTokens() != index_before_; })) << "its prompt is to come";
  }
  if (!plan.decode_worker().empty()) return kept_.Keep(plan.decode_worker(), kept);
  for (const std::string& worker : Workers()) kept_.Keep(worker, kept);
}

void ConversationTest::Keep(TurnKind kind, const std::vector<int32_t>& prompt, const Answer& answer) {
  if (kind == TurnKind::kNoCache) return;
  const v1::Plan plan = PlanOf(answer);
  const auto size = static_cast<int64_t>(prompt.size());
  KeptSequences::Ended ended{prompt, plan.known_tokens(), size, size};
  if (kind == TurnKind::kOneToken) return KeepOneToken(ended, plan);
  const std::vector<int32_t>& drawn = kind == TurnKind::kCancelled ? maybe_answered_ : answer.ids;
  ended.ids.insert(ended.ids.end(), drawn.begin(), drawn.end() - 1);
  if (kind != TurnKind::kCancelled) ended.certain = static_cast<int64_t>(ended.ids.size());
  if (answer.finished.failovers() > 0) ended.certain = 0;
  kept_.Keep(plan.decode_worker(), ended);
}

void ConversationTest::Take(TurnKind kind, int turn) {
  const std::vector<int32_t> prompt = conversation_.Ask(kind);
  const bool cancel = kind == TurnKind::kCancelled;
  v1::GenerateRequest request = RequestOf(prompt, kind, turn, cancel ? kCancelledAnswer : kAnswer);
  if (turn % 3 == 2 && !GetParam().int8) {
    request.mutable_sampling()->set_temperature(0.8f);
    request.mutable_sampling()->set_top_k(kTopK);
  }
  index_before_ = IndexTokens();
  const Answer answer = Generate(request, cancel);
  ASSERT_TRUE(answer.status.ok() || cancel) << answer.status.error_message();
  ASSERT_FALSE(answer.ids.empty());
  ExpectKnown(kind, prompt, answer);
  const Answer cold = Cold(request);
  ExpectAsCold(answer, cold, /*greedy=*/request.sampling().temperature() == 0, /*whole=*/answer.status.ok());
  const v1::Plan plan = PlanOf(answer);
  const bool of_prompts = plan.known_tokens() > 0 && plan.known_output_tokens() == 0;
  if (IsBitwise() && of_prompts && answer.status.ok()) ExpectBits(answer, cold);
  Keep(kind, prompt, answer);
  // Of one that was cancelled always as much, for the script to go on alike in every run.
  const size_t taken = cancel ? kSeenOfCancelled : answer.ids.size();
  conversation_.Answer({answer.ids.begin(), answer.ids.begin() + std::min(taken, answer.ids.size())});
}

void ConversationTest::Converse(int turns) {
  std::vector<TurnKind> kinds = conversation_.Turns(turns);
  const std::vector<TurnKind> behind_prompts = Conversation::TurnsOfPromptsAlone();
  kinds.insert(kinds.end(), behind_prompts.begin(), behind_prompts.end());
  // What windows hid may be computed anew, and without a table the router may choose that.
  const bool all_are_known = !Hides() && GetParam().table;
  for (int turn = 0; turn < static_cast<int>(kinds.size()) && !HasFatalFailure(); ++turn) {
    SCOPED_TRACE(absl::StrCat("turn ", turn, ": ", NameOf(kinds[turn])));
    const int compared = bitwise_;
    Take(kinds[turn], turn);
    // On no worker is there a copy of these beginnings with positions of an answer.
    if (turn >= turns && all_are_known && IsBitwise()) {
      EXPECT_EQ(bitwise_, compared + 1);
    }
  }
  EXPECT_TRUE(hits_ > 0 || !GetParam().table);
  cluster_.ExpectAllFree();
  std::cout << GetParam().name << ": " << hits_ << " of " << kinds.size() << " prompts began with what was known, with "
            << known_outputs_ << " tokens of answers, " << bitwise_ << " compared to the bit\n";
}

}  // namespace runahead::testing
