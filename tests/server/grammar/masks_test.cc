// Masks of random answers of many forms, judged by what the form's state accepts: they are the same whether a state's
// mask was made when the form was compiled, or when the answer came there.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/grammar/grammar_compiler.h"
#include "server/grammar/grammar_work.h"
#include "tests/testing/json_tokenizer.h"

namespace runahead {
namespace {

constexpr int64_t kMaskRows = 300;
constexpr int kAnswers = 4, kTokens = 20;

const StructureSpec kForms[] = {
    {.kind = StructureKind::kJsonObject},
    {.kind = StructureKind::kJsonSchema,
     .text = R"({"type":"object","properties":{"name":{"type":"string","maxLength":4},"n":{"type":"integer"}}})"},
    {.kind = StructureKind::kJsonSchema, .text = R"({"type":"string","minLength":3,"maxLength":300})"},
    {.kind = StructureKind::kJsonSchema,
     .text = R"({"anyOf":[{"type":"string","maxLength":200},{"type":"string","minLength":150,"maxLength":201}]})"},
    {.kind = StructureKind::kJsonSchema, .text = R"({"type":"array","items":{"type":"string","pattern":"(ab|12)*"}})"},
    {.kind = StructureKind::kJsonSchema, .text = R"({"type":"array","maxItems":3,"items":{"type":"number"}})"},
    {.kind = StructureKind::kJsonSchema, .text = R"({"type":"object","properties":{"a":{},"b":{},"c":{},"d":{}}})"},
    {.kind = StructureKind::kJsonSchema, .text = R"({"format":"date-time"})"},
    {.kind = StructureKind::kJsonSchema,
     .text = R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}}})"},
    {.kind = StructureKind::kJsonSchema, .text = "{\"const\":\"abc\xe2\x82\xac\\\"name\"}", .before = "<t>\n"},
    {.kind = StructureKind::kRegex, .text = "\\w+( a|, )*"},
    {.kind = StructureKind::kRegex, .text = ".{0,200}"},
    {.kind = StructureKind::kRegex, .text = ".{150}a"},
    {.kind = StructureKind::kRegex, .text = "([^b]?[^c]?){20}"},
    {.kind = StructureKind::kRegex, .text = ".*a.{5}"},
    {.kind = StructureKind::kRegex, .text = "(a|ab|abc)*(null|true|12){2,9}"},
    {.kind = StructureKind::kGrammar, .text = "root ::= [^\"]* \"\\\"\""},
    {.kind = StructureKind::kGrammar,
     .text = "root ::= \"[\" (root (\", \" root)*)? \"]\" | \"\\\"\" [^\"]{0,140} \"\\\"\""},
    {.kind = StructureKind::kGrammar, .text = "root ::= (root root | \"a\")? \"b\"*"},
    {.kind = StructureKind::kChoice, .choices = {"true", "truename", "nullnull", "a\xe2\x82\xac"}},
};

std::unique_ptr<GrammarCompiler> CompilerAhead(int64_t ahead_work, size_t cache_bytes = size_t{1} << 20) {
  static const auto& tokenizer = *new std::shared_ptr<const Tokenizer>(MakeJsonTokenizer());
  auto compiler = GrammarCompiler::Create(
      *tokenizer, {.vocabulary_size = kMaskRows, .cache_bytes = cache_bytes, .ahead_work = ahead_work});
  EXPECT_TRUE(compiler.ok()) << compiler.status();
  return *std::move(compiler);
}

std::vector<int32_t> AllowedBy(GrammarState& state) {
  std::vector<uint32_t> mask((kMaskRows + 31) / 32);
  const auto limits = state.FillMask(absl::MakeSpan(mask));
  EXPECT_TRUE(limits.ok()) << limits.status();
  std::vector<int32_t> allowed;
  for (int32_t id = 0; id < kMaskRows; ++id) {
    if (mask[id / 32] >> (id % 32) & 1) allowed.push_back(id);
  }
  return allowed;
}

std::vector<int32_t> AcceptedBy(const GrammarState& state) {
  std::vector<int32_t> accepted;
  for (int32_t id = 0; id < kMaskRows; ++id) {
    if (state.Copy()->Accept(id).ok()) accepted.push_back(id);
  }
  return accepted;
}

// Those of `ids` that are not among `others`.
std::string Only(const std::vector<int32_t>& ids, const std::vector<int32_t>& others) {
  std::string only;
  for (const int32_t id : ids) {
    if (!std::binary_search(others.begin(), others.end(), id)) absl::StrAppend(&only, " ", id);
  }
  return only;
}

class Masks : public testing::TestWithParam<int> {
 protected:
  static std::shared_ptr<const CompiledGrammar> CompiledBy(GrammarCompiler& compiler) {
    const auto grammar = compiler.Compile(kForms[GetParam()]);
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    return grammar.ok() ? *grammar : nullptr;
  }
};

TEST_P(Masks, SayWhatIsAcceptedWheneverTheyAreMade) {
  const auto ahead = CompiledBy(*CompilerAhead(kNoWorkBound));
  const auto late = CompiledBy(*CompilerAhead(0));
  const auto forgotten = CompiledBy(*CompilerAhead(0, /*cache_bytes=*/1));  // each mask is made again
  ASSERT_TRUE(ahead != nullptr && late != nullptr && forgotten != nullptr);
  EXPECT_GT(ahead->bytes(), late->bytes());
  std::mt19937 random(GetParam());
  for (int answer = 0; answer < kAnswers; ++answer) {
    std::vector<std::unique_ptr<GrammarState>> states;
    for (const auto& form : {ahead, late, forgotten}) states.push_back(form->Begin());
    std::string ids;
    for (int token = 0; token < kTokens && !states[0]->Ended(); ++token) {
      const std::vector<int32_t> accepted = AcceptedBy(*states[0]);
      ASSERT_FALSE(accepted.empty());
      for (size_t i = 0; i < states.size(); ++i) {
        EXPECT_EQ(Only(AllowedBy(*states[i]), accepted), "") << "allowed by " << i << " behind" << ids;
        ASSERT_EQ(Only(accepted, AllowedBy(*states[i])), "") << "not allowed by " << i << " behind" << ids;
      }
      // Rather the pieces of several bytes than those of one.
      const int32_t first = random() % 2 == 0 ? accepted[random() % accepted.size()] : accepted.back();
      const int32_t id = first == kJsonEnd ? accepted.back() : first;
      for (const auto& state : states) ASSERT_TRUE(state->Accept(id).ok());
      absl::StrAppend(&ids, " ", id);
    }
  }
}

// For the thread sanitizer: they share the masks that are made late.
TEST_P(Masks, AreMadeByAnswersBesideEachOther) {
  const auto late = CompiledBy(*CompilerAhead(0));
  ASSERT_NE(late, nullptr);
  std::vector<std::vector<int32_t>> drawn(4);
  std::vector<std::thread> threads;
  for (auto& ids : drawn) {
    threads.emplace_back([&] {
      const auto state = late->Begin();
      for (int token = 0; token < kTokens && !state->Ended(); ++token) {
        const std::vector<int32_t> allowed = AllowedBy(*state);
        ids.push_back(allowed[allowed.size() / 2]);
        EXPECT_TRUE(state->Accept(ids.back()).ok());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& ids : drawn) EXPECT_EQ(ids, drawn[0]);
}

INSTANTIATE_TEST_SUITE_P(Forms, Masks, testing::Range(0, static_cast<int>(std::size(kForms))));

}  // namespace
}  // namespace runahead
