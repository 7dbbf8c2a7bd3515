// Texts drawn at random among what masks allow, judged by somebody else.
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "server/grammar/grammar_compiler.h"
#include "tests/server/grammar/schema_judge.h"
#include "tests/testing/json_tokenizer.h"

namespace runahead {
namespace {

const char* const kSchemas[] = {
    "{}",
    "true",
    R"({"type":"object"})",
    R"({"type":"array","maxItems":3})",
    R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{}},"required":["b"]})",
    R"({"type":"object","additionalProperties":{"type":["integer","null"]}})",
    R"({"type":"object","additionalProperties":false})",
    R"({"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":5})",
    R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"},"minItems":1,"maxItems":4})",
    R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"null"}]})",
    R"({"type":"string","minLength":2,"maxLength":5})",
    R"({"type":"string","minLength":3})",
    R"({"type":"string","pattern":"^(ab|[^a-z]{2,3})+.?$"})",
    R"({"type":"string","pattern":"^[\\w\\s]*\\S$"})",
    R"({"type":"integer","minimum":-12,"maximum":345})",
    R"({"type":"integer","exclusiveMinimum":0})",
    R"({"type":"integer","multipleOf":7})",
    R"({"type":"integer","multipleOf":7,"minimum":-20,"maximum":100})",
    R"({"type":"number","minimum":0.25,"exclusiveMaximum":10})",
    R"({"type":"number","exclusiveMinimum":-1.5,"maximum":-0.5})",
    R"({"type":"number","minimum":0})",
    R"({"type":"number"})",
    R"({"enum":["a","b\"\\\n",1,1.5,null,true,[1,{"a":2}],{"x":"y"}]})",
    R"({"const":{"a":[1,"€"]}})",
    R"({"type":["string","null"],"maxLength":3})",
    R"({"anyOf":[{"type":"integer"},{"type":"object","properties":{"a":{"type":"null"}}}]})",
    R"({"oneOf":[{"type":"object","properties":{"kind":{"const":"a"},"n":{"type":"integer"}},"required":["kind","n"]},
                 {"type":"object","properties":{"kind":{"enum":["b","c"]}},"required":["kind"]}]})",
    R"({"allOf":[{"$ref":"#/$defs/node"}],"$defs":{"node":{"type":"object","properties":{"value":{"type":"integer"},
        "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["value"]}}})",
    R"({"definitions":{"name":{"type":"string","maxLength":2}},"type":"array","items":{"$ref":"#/definitions/name"},"maxItems":2})",
    R"({"type":"array","items":{"anyOf":[{"$ref":"#"},{"type":"integer"}]},"maxItems":2})",
};

constexpr int64_t kModelRows = 300;
constexpr int kTexts = 60;
constexpr int kMostBeforeACut = 200;  // tokens

class RandomTexts : public testing::TestWithParam<int> {
 protected:
  RandomTexts() : tokenizer_(MakeJsonTokenizer()) {
    auto compiler = GrammarCompiler::Create(*tokenizer_, {.vocabulary_size = kModelRows});
    EXPECT_TRUE(compiler.ok()) << compiler.status();
    grammar_ = *(*compiler)->Compile({.kind = StructureKind::kJsonSchema, .text = schema()});
  }

  static std::string schema() { return kSchemas[GetParam()]; }

  // The next id; to end, rather one that ends something than one that goes on with it.
  int32_t Draw(GrammarState& state, bool to_end) {
    std::vector<uint32_t> mask((kModelRows + 31) / 32);
    EXPECT_TRUE(state.FillMask(absl::MakeSpan(mask)).ok());
    std::vector<int32_t> all;
    std::vector<int32_t> ends;
    for (int32_t id = 0; id < kModelRows; ++id) {
      if ((mask[id / 32] >> (id % 32) & 1) == 0) continue;
      all.push_back(id);
      const std::string_view bytes = tokenizer_->TokenBytes(id);
      const bool closes =
          bytes == "\"" || bytes == "}" || bytes == "]" || bytes == "\"}" || bytes == "]}" || bytes == "}}";
      if (id == kJsonEnd || closes) ends.push_back(id);
    }
    EXPECT_FALSE(all.empty()) << "nothing goes on";
    if (all.empty()) return kJsonEnd;
    const auto& among = to_end && !ends.empty() && random_() % 3 == 0 ? ends : all;
    return among[random_() % among.size()];
  }

  // Whose first `cut` tokens are any.
  std::string Text(int cut = 0) {
    const auto state = grammar_->Begin();
    std::string text;
    for (int tokens = 0; tokens < 5000 && !HasFailure(); ++tokens) {
      const int32_t id = Draw(*state, tokens >= cut);
      EXPECT_TRUE(state->Accept(id).ok()) << id << " behind " << text;
      if (state->Ended()) return text;
      text += tokenizer_->TokenBytes(id);
    }
    ADD_FAILURE() << "no end: " << text.substr(0, 200);
    return text;
  }

  bool AcceptedAsForm(const std::string& text) {
    const auto state = grammar_->Begin();
    for (const char c : text) {
      if (!state->Accept(kJsonFirstByte + static_cast<unsigned char>(c)).ok()) return false;
    }
    return state->Complete();
  }

  // What is JSON by its grammar, but cannot be judged: a number beyond doubles, half of a surrogate pair, an unfinished
  // character.
  static bool IsJudgeable(const std::string& text) {
    try {
      nlohmann::json::parse(text).dump();
    } catch (const nlohmann::json::exception& error) {
      return error.id != 406 && !absl::StrContains(error.what(), "surrogate") &&
             !absl::StrContains(error.what(), "UTF-8");
    }
    return true;
  }

  void ExpectValid(const std::string& text) {
    if (!IsJudgeable(text)) return;
    try {
      EXPECT_TRUE(AcceptedBySchema(schema(), text)) << schema() << "\n" << text;
    } catch (const nlohmann::json::exception& error) {
      ADD_FAILURE() << schema() << "\n" << text << "\n" << error.what();
    }
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const CompiledGrammar> grammar_;
  std::mt19937 random_{7};
};

TEST_P(RandomTexts, AreValid) {
  for (int i = 0; i < kTexts && !HasFailure(); ++i) ExpectValid(Text());
}

TEST_P(RandomTexts, CanBeEndedWhereverTheyAreCut) {
  for (int i = 0; i < kTexts && !HasFailure(); ++i) {
    ExpectValid(Text(1 + static_cast<int>(random_() % kMostBeforeACut)));
  }
}

// Of texts with a fault, only those pass that are valid all the same.
TEST_P(RandomTexts, WithAFaultPassOnlyWhereTheyAreValid) {
  int refused = 0;
  for (int i = 0; i < 10 * kTexts && !HasFailure(); ++i) {
    std::string text = Text();
    const size_t at = random_() % text.size();
    const char other = "{}[]\",: 0123456789-+.eE\\abctruefalsn\x01\t\n\xff"[random_() % 40];
    switch (random_() % 3) {
      case 0:
        text.erase(at, 1);
        break;
      case 1:
        text.insert(at, 1, other);
        break;
      default:
        text[at] = other;
    }
    if (AcceptedAsForm(text)) {
      ExpectValid(text);
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Schemas, RandomTexts, testing::Range(0, static_cast<int>(std::size(kSchemas))));

}  // namespace
}  // namespace runahead
