// Conversations as users have them, over real processes: every answer is the one of a cold run, and what was known of
// its prompt is what a model of the caches says (kept_sequences.h). One case each of what may meet: the table is below.
#include <gtest/gtest.h>

#include "tests/integration/conversation_fixture.h"

namespace runahead {
namespace {

using testing::ConversationCase;
using testing::ConversationTest;
using testing::DecodeKind;
using testing::kHidesNothing;
using testing::NameOfCase;

using Conversations = ConversationTest;
TEST_P(Conversations, OfTwentyTurnsAreThoseOfColdRuns) {
  Converse(20);
}

// Every family, width, number of decode workers, kind of decode, and a window where a family has one; of any two of
// these axes most pairs. A window of 100 is shorter than any prompt.
constexpr ConversationCase kCases[] = {
    //    name, family, window, width, decode workers, kind, seed
    {"Llama", SyntheticFamily::kLlama, 0, 1, 1, DecodeKind::kRows, 1},
    {"LlamaWide", SyntheticFamily::kLlama, 0, 3, 2, DecodeKind::kChains, 2},
    {"Mistral", SyntheticFamily::kLlama, 100, 2, 1, DecodeKind::kRows, 3},
    {"MistralThree", SyntheticFamily::kLlama, kHidesNothing, 1, 3, DecodeKind::kChains, 4},
    {"Phi3", SyntheticFamily::kPhi3, 100, 1, 2, DecodeKind::kChains, 5},
    {"Phi3Wide", SyntheticFamily::kPhi3, 0, 3, 1, DecodeKind::kRows, 6},
    {"Gemma2", SyntheticFamily::kGemma2, 100, 3, 1, DecodeKind::kRows, 7},
    {"Gemma3", SyntheticFamily::kGemma3, 100, 2, 1, DecodeKind::kChains, 8},
    {"Gemma3Two", SyntheticFamily::kGemma3, kHidesNothing, 2, 2, DecodeKind::kRows, 9},
    {"Qwen2", SyntheticFamily::kQwen2, 0, 1, 3, DecodeKind::kRows, 10},
    {"Qwen2Windowed", SyntheticFamily::kQwen2, 100, 3, 1, DecodeKind::kChains, 11},
    {"Qwen3", SyntheticFamily::kQwen3, 0, 2, 1, DecodeKind::kChains, 12},
    {"Falcon", SyntheticFamily::kFalcon, 0, 3, 3, DecodeKind::kRows, 13},
    {"Opt", SyntheticFamily::kOpt, 0, 2, 2, DecodeKind::kRows, 14},
    {"Starcoder2", SyntheticFamily::kStarcoder2, 100, 1, 1, DecodeKind::kRows, 15},
    {"Starcoder2Wide", SyntheticFamily::kStarcoder2, 0, 3, 1, DecodeKind::kChains, 16},
    {"LlamaLink", SyntheticFamily::kLlama, 0, 2, 1, DecodeKind::kLink, 17},
    {"Gemma2Link", SyntheticFamily::kGemma2, 100, 1, 2, DecodeKind::kLink, 18},
    {"LlamaX", SyntheticFamily::kLlama, 0, 3, 1, DecodeKind::kX, 19},
    {"OptX", SyntheticFamily::kOpt, 0, 1, 2, DecodeKind::kX, 20},
    {"Int8", SyntheticFamily::kLlama, 0, 2, 1, DecodeKind::kRows, 21, /*table=*/true, /*int8=*/true},
    {"Untimed", SyntheticFamily::kQwen3, 0, 2, 2, DecodeKind::kRows, 22, /*table=*/false},
    {"UntimedChains", SyntheticFamily::kLlama, 0, 2, 1, DecodeKind::kChains, 23, /*table=*/false},
};
INSTANTIATE_TEST_SUITE_P(Matrix, Conversations, ::testing::ValuesIn(kCases), NameOfCase);

// A turn of each kind, for every change.
using ShortConversations = ConversationTest;
TEST_P(ShortConversations, AreThoseOfColdRuns) {
  Converse(10);
}
INSTANTIATE_TEST_SUITE_P(
    Gate, ShortConversations,
    ::testing::Values(ConversationCase{"Qwen3", SyntheticFamily::kQwen3, 0, 2, 1, DecodeKind::kRows, 31},
                      ConversationCase{"Gemma2", SyntheticFamily::kGemma2, 100, 1, 1, DecodeKind::kRows, 32}),
    NameOfCase);

}  // namespace
}  // namespace runahead
