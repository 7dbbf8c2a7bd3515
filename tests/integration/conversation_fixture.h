// A cluster, a user of it, and what is known of each of the user's prompts, for tests of conversations.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/conversation.h"
#include "tests/integration/kept_sequences.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/exactness.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead::testing {

// Who computes the rest of a prompt, and where decode has KV.
enum class DecodeKind {
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
  DecodeKind kind;
  uint32_t seed;
  bool table = true;  // the router plans by made-up times, so that what is known is used; else by what prompts took
  bool int8 = false;
};

constexpr int64_t kHidesNothing = 3000;  // a window that is longer than any sequence here

class ConversationTest : public ::testing::TestWithParam<ConversationCase> {
 protected:
  static constexpr int kAnswer = 16, kCancelledAnswer = 48, kSeenOfCancelled = 4;

  ConversationTest();

  // So many turns of one user, one after the other, and some more behind positions of prompts alone.
  void Converse(int turns);
  // One of them: what came is as a cold run's, what was known is as it should be, and both are kept.
  void Take(TurnKind kind, int turn);
  static v1::GenerateRequest RequestOf(const std::vector<int32_t>& prompt, TurnKind kind, int turn, int tokens);
  Answer Generate(const v1::GenerateRequest& request, bool cancel);
  Answer Cold(v1::GenerateRequest request);
  // `whole`: of one that was cancelled what came is a beginning.
  void ExpectAsCold(const Answer& answer, const Answer& cold, bool greedy, bool whole);
  void ExpectDrawnAlike(const v1::TokenLogprobs& token, const v1::TokenLogprobs& cold);
  void ExpectBits(const Answer& answer, const Answer& cold);
  bool Sure(TurnKind kind, const std::vector<int32_t>& prompt, const KeptSequences::Known& known) const;
  void ExpectKnown(TurnKind kind, const std::vector<int32_t>& prompt, const Answer& answer);
  void Keep(TurnKind kind, const std::vector<int32_t>& prompt, const Answer& answer);
  void KeepOneToken(const KeptSequences::Ended& ended, const v1::Plan& plan);

  static v1::Plan PlanOf(const Answer& answer) {
    return answer.finished.has_plan() ? answer.finished.plan() : answer.started.plan();
  }
  static bool ComputesRows() { return GetParam().kind == DecodeKind::kRows; }
  static bool Hides() { return GetParam().window > 0 && GetParam().window < kHidesNothing; }
  static std::vector<std::string> Workers() {
    std::vector<std::string> names;
    for (int i = 0; i < GetParam().decode; ++i) names.push_back(absl::StrCat("decode-", i));
    return names;
  }
  // Positions of prompts are the same to the bit however they came to be: where a prompt's cut changes no bit, and KV
  // is never made of X, which is done by decode's arithmetic.
  static bool IsBitwise() { return !GetParam().int8 && GetParam().kind != DecodeKind::kX; }
  double IndexTokens() const { return cluster_.Metric("router", "runahead_known_index_tokens"); }

  LocalCluster cluster_;
  Conversation conversation_;
  KeptSequences kept_;
  TokenRule rule_{GetParam().int8 ? DType::kBF16 : DType::kF32};  // of all greedy answers
  std::vector<int32_t> maybe_answered_;  // by who was cancelled: the whole answer of a cold run
  double index_before_ = 0;
  int hits_ = 0, known_outputs_ = 0, bitwise_ = 0, drawn_apart_ = 0;
};

inline std::string NameOfCase(const ::testing::TestParamInfo<ConversationCase>& info) {
  return info.param.name;
}

}  // namespace runahead::testing
