// Conversations as users have them, over real processes: every answer is the one of a cold run, and what was known of
// its prompt is what a model of the caches says (kept_sequences.h). One case each of what may meet: the table is below.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/rpc/channel.h"
#include "tests/integration/conversation.h"
#include "tests/integration/kept_sequences.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/exactness.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_family.h"

namespace runahead {
namespace {

using testing::Conversation;
using testing::KeptSequences;
using testing::TurnKind;

// Who computes the rest of a prompt, and where decode has KV.
enum class Decode {
  kRows,    // the decode worker computes rows of prompts, or a chain does
  kChains,  // a chain always
  kLink,    // over a link, KV alone: a chain
  kX        // over a link, X beside KV or in place of it: a chain
};

struct ConversationCase {
  const char* name;
  SyntheticFamily family;
  int64_t window;  // 0: none
  int width;       // of prefill workers
  int decode;      // workers
  Decode kind;
  uint32_t seed;
  bool table = true;  // the router plans by made-up times, so that what is known is used; else by what prompts took
  bool int8 = false;
};

constexpr int64_t kHidesNothing = 3000;  // a window that is longer than any sequence here

class ConversationTest : public ::testing::TestWithParam<ConversationCase> {
 protected:
  static constexpr int kAnswer = 16, kCancelledAnswer = 48, kSeenOfCancelled = 4;

  ConversationTest() : cluster_(WriteModel(), Arguments()), conversation_(GetParam().seed) {
    const std::string ready = "runahead_workers{role=\"prefill\",state=\"ready\"}";
    EXPECT_TRUE(Eventually([&] { return cluster_.Metric("router", ready) == GetParam().width; }));
  }

  static std::string WriteModel() {
    SyntheticModel model = SmallModelOf(GetParam().family, GetParam().window);
    if (GetParam().kind == Decode::kX) model.kv_heads = model.heads;  // X is half as large as KV
    if (GetParam().int8) model.SetWeightType(WeightType::kQ8_0);
    return WriteSynthetic(model, absl::StrCat("conversation_", GetParam().name));
  }
  // Much slower than any machine: what bringing KV took counts where it is later than expected alone. By these times
  // whoever knows a beginning is sooner, and a chain for a long rest is, beside the decode worker itself.
  static std::string WriteTable() {
    constexpr double kToken = 0.02;  // seconds, on one worker
    const std::string path = absl::StrCat(::testing::TempDir(), "/conversation_", GetParam().name, ".yaml");
    std::ofstream table(path);
    table << "version: 1\nschedule: kvr\nentries:\n";
    for (const int64_t tokens : {16, 4096}) {
      const auto entry = [&](int width, const char* fractions, double counted) {
        if (width > GetParam().width) return;
        table << absl::StrCat("  - {width: ", width, ", tokens: ", tokens, ", fractions: [", fractions,
                              "], predicted_ttft_s: ", kToken * counted, "}\n");
      };
      const auto all = static_cast<double>(tokens);
      entry(1, "1", all);
      entry(2, "0.56, 0.44", 30 + 0.7 * all);
      entry(3, "0.4, 0.33, 0.27", 30 + 0.6 * all);
    }
    return path;
  }
  static std::vector<std::string> Arguments() {
    const ConversationCase& test = GetParam();
    std::vector<std::string> arguments = {
        "--prefill", absl::StrCat(test.width),   "--decode",     absl::StrCat(test.decode),
        "--dtype",   test.int8 ? "int8" : "f32", "--experiments"};
    const auto add = [&](const std::vector<std::string>& more) {
      arguments.insert(arguments.end(), more.begin(), more.end());
    };
    if (test.table) add({"--table", WriteTable()});
    if (test.kind == Decode::kChains) add({"--step-rows", "off"});
    if (test.kind == Decode::kLink || test.kind == Decode::kX) {
      add({"--emulated-link-gbps", "50", "--kv-device-budget", "1MiB", "--host-lane", "off"});
      add({"--recompute", test.kind == Decode::kX ? "128" : "off"});
    }
    return arguments;
  }

  void Converse(int turns);
  void Take(TurnKind kind, int turn);
  Answer Generate(const v1::GenerateRequest& request, bool cancel);
  void ExpectAsCold(const Answer& answer, v1::GenerateRequest request, bool whole);
  std::vector<int32_t> Cold(v1::GenerateRequest request, std::vector<Top>& tops, std::vector<float>& logprobs);
  void ExpectBits(const Answer& answer, v1::GenerateRequest request);
  bool Sure(TurnKind kind, const std::vector<int32_t>& prompt, const KeptSequences::Known& known) const;
  void ExpectKnown(TurnKind kind, const std::vector<int32_t>& prompt, const Answer& answer);
  void Keep(TurnKind kind, const std::vector<int32_t>& prompt, const Answer& answer);
  void KeepOneToken(const KeptSequences::Ended& ended, const v1::Plan& plan);

  static v1::Plan PlanOf(const Answer& answer) {
    return answer.finished.has_plan() ? answer.finished.plan() : answer.started.plan();
  }
  static bool ComputesRows() { return GetParam().kind == Decode::kRows; }
  static bool Hides() { return GetParam().window > 0 && GetParam().window < kHidesNothing; }
  static std::vector<std::string> Workers() {
    std::vector<std::string> names;
    for (int i = 0; i < GetParam().decode; ++i) names.push_back(absl::StrCat("decode-", i));
    return names;
  }
  double IndexTokens() const { return cluster_.Metric("router", "runahead_known_index_tokens"); }

  LocalCluster cluster_;
  Conversation conversation_;
  KeptSequences kept_;
  TokenRule rule_{GetParam().int8 ? DType::kBF16 : DType::kF32};  // of all greedy answers
  std::vector<int32_t> maybe_answered_;  // by who was cancelled: the whole answer of a cold run
  double index_before_ = 0;
  int hits_ = 0, known_outputs_ = 0, bitwise_ = 0;
};

v1::GenerateRequest RequestOfTurn(const std::vector<int32_t>& prompt, TurnKind kind, int turn, int tokens) {
  v1::GenerateRequest request = RequestOf(prompt, kind == TurnKind::kOneToken ? 1 : tokens);
  request.set_no_cache(kind == TurnKind::kNoCache);
  request.mutable_sampling()->set_seed(turn);
  request.mutable_sampling()->set_logprobs(2);
  return request;
}

// Of a chain from the first token, as wide as the line is. Its tokens, with the margins and log probabilities of each.
std::vector<int32_t> ConversationTest::Cold(v1::GenerateRequest request, std::vector<Top>& tops,
                                            std::vector<float>& logprobs) {
  request.set_no_cache(true);
  request.mutable_experiment()->set_width(GetParam().width);
  const Answer cold = cluster_.Generate(request);
  EXPECT_TRUE(cold.status.ok()) << cold.status.error_message();
  EXPECT_EQ(cold.finished.usage().cached_prompt_tokens(), 0);
  EXPECT_EQ(cold.started.plan().workers_size(), GetParam().width);
  for (const v1::TokenLogprobs& token : cold.logprobs) {
    tops.push_back({token.top(0).id(), token.top(0).logprob() - token.top(1).logprob()});
    logprobs.push_back(token.top(0).logprob());
  }
  return cold.ids;
}

// `whole`: of one that was cancelled what came is a beginning.
void ConversationTest::ExpectAsCold(const Answer& answer, v1::GenerateRequest request, bool whole) {
  std::vector<Top> tops;
  std::vector<float> logprobs;
  const bool greedy = request.sampling().temperature() == 0;
  const std::vector<int32_t> cold = Cold(std::move(request), tops, logprobs);
  ASSERT_LE(answer.ids.size(), cold.size());
  const bool same = std::equal(answer.ids.begin(), answer.ids.end(), cold.begin());
  maybe_answered_ = same ? cold : answer.ids;
  EXPECT_TRUE(!whole || answer.ids.size() == cold.size());
  ASSERT_EQ(answer.logprobs.size(), answer.ids.size());
  const float apart = GetParam().int8 ? 0.5f : 1e-3f;
  for (size_t i = 0; i < answer.ids.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("token ", i));
    if (greedy) rule_.Add(answer.ids[i], tops[i]);
    if (greedy && answer.ids[i] != cold[i]) return;  // rightly so, and all that follows goes on from it
    ASSERT_EQ(answer.ids[i], cold[i]);
    EXPECT_NEAR(answer.logprobs[i].top(0).logprob(), logprobs[i], apart);
  }
}

Answer ConversationTest::Generate(const v1::GenerateRequest& request, bool cancel) {
  if (!cancel) return cluster_.Generate(request);
  grpc::ClientContext context;
  SetTimeout(context, testing::Patience(LocalCluster::kPatience));
  const Answer answer = cluster_.Generate(request, &context, [&](size_t tokens) {
    if (tokens >= kSeenOfCancelled) context.TryCancel();
  });
  EXPECT_GE(answer.ids.size(), static_cast<size_t>(kSeenOfCancelled));
  cluster_.ExpectAllFree();  // nothing of it runs any more
  return answer;
}

// Behind tokens of prompts alone a chain gives, to the bit, what one from the first token gives that has the same parts
// behind one more. Decode workers that compute the rest themselves: worker/decode/known_streams_test.
void ConversationTest::ExpectBits(const Answer& answer, v1::GenerateRequest request) {
  const v1::Plan& plan = answer.started.plan();
  if (plan.workers_size() + 1 > GetParam().width) return;
  request.set_no_cache(true);
  v1::Experiment& experiment = *request.mutable_experiment();
  experiment.add_parts(plan.known_tokens());
  experiment.mutable_parts()->MergeFrom(plan.parts());
  experiment.set_width(experiment.parts_size());
  const Answer whole = cluster_.Generate(request);
  EXPECT_TRUE(whole.status.ok()) << whole.status.error_message();
  ASSERT_EQ(answer.ids, whole.ids);
  for (size_t i = 0; i < whole.ids.size(); ++i) {
    EXPECT_EQ(answer.logprobs[i].SerializeAsString(), whole.logprobs[i].SerializeAsString()) << "token " << i;
  }
  ++bitwise_;
}

// Whether it must have begun with what a worker knows for certain. By the table that is sooner always, but for the rest
// of an answer of one token, for which a chain brings no KV; else where a quarter at most is left, and the worker
// computes it itself.
bool ConversationTest::Sure(TurnKind kind, const std::vector<int32_t>& prompt,
                            const KeptSequences::Known& known) const {
  if (kind == TurnKind::kNoCache || known.tokens.least == 0 || (Hides() && !known.whole)) return false;
  if (GetParam().table && kind != TurnKind::kOneToken) return true;
  return ComputesRows() && 4 * known.tokens.least >= 3 * static_cast<int64_t>(prompt.size());
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

// An answer of one token by a chain: its prompt goes to some decode worker behind it, where workers compute rows.
void ConversationTest::KeepOneToken(const KeptSequences::Ended& ended, const v1::Plan& plan) {
  const int64_t size = ended.prompt;
  KeptSequences::Ended kept = ended;
  if (plan.schedule() == "continuation") {
    kept.certain = GetParam().window > 0 ? 0 : size;
    return kept_.Keep(plan.decode_worker(), kept);
  }
  const bool leaves = ComputesRows() && GetParam().window == 0;
  kept.certain = leaves && GetParam().decode == 1 ? size : 0;
  if (kept.certain > 0) {
    EXPECT_TRUE(Eventually([&] { return IndexTokens() != index_before_; })) << "its prompt is to come";
  }
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
  v1::GenerateRequest request = RequestOfTurn(prompt, kind, turn, cancel ? kCancelledAnswer : kAnswer);
  if (turn % 3 == 2 && !GetParam().int8) {
    request.mutable_sampling()->set_temperature(0.8f);
    request.mutable_sampling()->set_top_k(4);
  }
  index_before_ = IndexTokens();
  const Answer answer = Generate(request, cancel);
  ASSERT_TRUE(answer.status.ok() || cancel) << answer.status.error_message();
  ASSERT_FALSE(answer.ids.empty());
  ExpectKnown(kind, prompt, answer);
  ExpectAsCold(answer, request, /*whole=*/answer.status.ok());
  const v1::Plan& plan = answer.started.plan();
  const bool brought = plan.known_tokens() > 0 && plan.schedule() != "continuation" && GetParam().kind != Decode::kX;
  if (brought && plan.known_output_tokens() == 0 && answer.status.ok() && !GetParam().int8) ExpectBits(answer, request);
  Keep(kind, prompt, answer);
  conversation_.Answer(answer.ids);
}

void ConversationTest::Converse(int turns) {
  const std::vector<TurnKind> kinds = conversation_.Turns(turns);
  for (int turn = 0; turn < turns && !HasFatalFailure(); ++turn) {
    SCOPED_TRACE(absl::StrCat("turn ", turn, ": ", NameOf(kinds[turn])));
    Take(kinds[turn], turn);
  }
  EXPECT_GT(hits_, 0);
  if (GetParam().int8) rule_.ExpectKept();
  cluster_.ExpectAllFree();
  std::cout << GetParam().name << ": " << hits_ << " of " << turns << " prompts began with what was known, with "
            << known_outputs_ << " tokens of answers, " << bitwise_ << " compared to the bit\n";
}

std::string NameOfCase(const ::testing::TestParamInfo<ConversationCase>& info) {
  return info.param.name;
}

using Conversations = ConversationTest;
TEST_P(Conversations, OfTwentyTurnsAreThoseOfColdRuns) {
  Converse(20);
}

// Every family, width, number of decode workers, kind of decode, and a window where a family has one; of any two of
// these axes most pairs. A window of 100 is shorter than any prompt.
constexpr ConversationCase kCases[] = {
    //    name, family, window, width, decode workers, kind, seed
    {"Llama", SyntheticFamily::kLlama, 0, 1, 1, Decode::kRows, 1},
    {"LlamaWide", SyntheticFamily::kLlama, 0, 3, 2, Decode::kChains, 2},
    {"Mistral", SyntheticFamily::kLlama, 100, 2, 1, Decode::kRows, 3},
    {"MistralThree", SyntheticFamily::kLlama, kHidesNothing, 1, 3, Decode::kChains, 4},
    {"Phi3", SyntheticFamily::kPhi3, 100, 1, 2, Decode::kChains, 5},
    {"Phi3Wide", SyntheticFamily::kPhi3, 0, 3, 1, Decode::kRows, 6},
    {"Gemma2", SyntheticFamily::kGemma2, 100, 3, 1, Decode::kRows, 7},
    {"Gemma3", SyntheticFamily::kGemma3, 100, 2, 1, Decode::kChains, 8},
    {"Gemma3Two", SyntheticFamily::kGemma3, kHidesNothing, 2, 2, Decode::kRows, 9},
    {"Qwen2", SyntheticFamily::kQwen2, 0, 1, 3, Decode::kRows, 10},
    {"Qwen2Windowed", SyntheticFamily::kQwen2, 100, 3, 1, Decode::kChains, 11},
    {"Qwen3", SyntheticFamily::kQwen3, 0, 2, 1, Decode::kChains, 12},
    {"Falcon", SyntheticFamily::kFalcon, 0, 3, 3, Decode::kRows, 13},
    {"Opt", SyntheticFamily::kOpt, 0, 2, 2, Decode::kRows, 14},
    {"Starcoder2", SyntheticFamily::kStarcoder2, 100, 1, 1, Decode::kRows, 15},
    {"Starcoder2Wide", SyntheticFamily::kStarcoder2, 0, 3, 1, Decode::kChains, 16},
    {"LlamaLink", SyntheticFamily::kLlama, 0, 2, 1, Decode::kLink, 17},
    {"Gemma2Link", SyntheticFamily::kGemma2, 100, 1, 2, Decode::kLink, 18},
    {"LlamaX", SyntheticFamily::kLlama, 0, 3, 1, Decode::kX, 19},
    {"OptX", SyntheticFamily::kOpt, 0, 1, 2, Decode::kX, 20},
    {"Int8", SyntheticFamily::kLlama, 0, 2, 1, Decode::kRows, 21, /*table=*/true, /*int8=*/true},
    {"Untimed", SyntheticFamily::kQwen3, 0, 2, 2, Decode::kRows, 22, /*table=*/false},
    {"UntimedChains", SyntheticFamily::kLlama, 0, 2, 1, Decode::kChains, 23, /*table=*/false},
};
INSTANTIATE_TEST_SUITE_P(Matrix, Conversations, ::testing::ValuesIn(kCases), NameOfCase);

// A turn of each kind, for every change.
using ShortConversations = ConversationTest;
TEST_P(ShortConversations, AreThoseOfColdRuns) {
  Converse(10);
}
INSTANTIATE_TEST_SUITE_P(
    Gate, ShortConversations,
    ::testing::Values(ConversationCase{"Qwen3", SyntheticFamily::kQwen3, 0, 2, 1, Decode::kRows, 31},
                      ConversationCase{"Gemma2", SyntheticFamily::kGemma2, 100, 1, 1, Decode::kRows, 32}),
    NameOfCase);

}  // namespace
}  // namespace runahead
