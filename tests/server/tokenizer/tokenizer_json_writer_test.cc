#include "server/tokenizer/tokenizer_json_writer.h"

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/tokenizer/tokenizer.h"
#include "tests/testing/golden_vocabulary.h"
#include "tests/testing/tokenizer_json.h"

namespace runahead {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// Pieces of all kinds, put together; some of what comes out is no UTF-8.
std::vector<std::string> MixedTexts(const std::vector<std::string>& pieces, int count) {
  std::mt19937 dice(36);
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    std::string& text = texts.emplace_back();
    for (size_t left = 1 + dice() % 6; left > 0; --left) {
      const std::string& piece = pieces[dice() % pieces.size()];
      const bool whole = dice() % 8 != 0;
      text += whole ? piece : piece.substr(0, dice() % 9);
    }
  }
  return texts;
}

std::shared_ptr<const Tokenizer> TokenizerOf(const Vocabulary& vocabulary) {
  const auto tokenizer = Tokenizer::FromVocabulary(vocabulary);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

// What our own reader makes of what is written.
Vocabulary ReadAgain(const Vocabulary& vocabulary) {
  const auto written = TokenizerJson(vocabulary);
  EXPECT_TRUE(written.ok()) << written.status();
  const auto file = ModelOfTokenizerJson(*written);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto read = ReadVocabulary(**file);
  EXPECT_TRUE(read.ok()) << read.status();
  return *read;
}

// Of a family, in either form.
using Origin = std::tuple<std::string, std::string>;

std::vector<Origin> Origins() {
  std::vector<Origin> origins;
  for (const std::string& name : GoldenVocabularies()) origins.emplace_back(name, "json");
  for (const std::string& name : GoldenGgufVocabularies()) origins.emplace_back(name, "gguf");
  return origins;
}

class WrittenVocabulary : public testing::TestWithParam<Origin> {
 protected:
  void SetUp() override {
    const auto& [name, form] = GetParam();
    GgufBuilder builder;
    if (form == "gguf") {
      AddGoldenVocabulary(name, builder);
    } else {
      builder.AddString("tokenizer.huggingface.json", GoldenTokenizerJson(name));
    }
    const auto file = ParseGguf(builder.Build());
    ASSERT_TRUE(file.ok()) << file.status();
    const auto vocabulary = ReadVocabulary(**file);
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    vocabulary_ = *vocabulary;
  }

  Vocabulary vocabulary_;
};

TEST_P(WrittenVocabulary, GivesTheSameIdsAndTexts) {
  const auto ours = TokenizerOf(vocabulary_), again = TokenizerOf(ReadAgain(vocabulary_));
  std::vector<std::string> texts = GoldenTexts();
  for (std::string& text : MixedTexts(texts, 500)) texts.push_back(std::move(text));
  for (const std::string& text : texts) {
    for (const bool special : {true, false}) {
      const auto ids = ours->Encode(text, {.parse_special = special, .add_bos = true});
      ASSERT_TRUE(ids.ok()) << ids.status();
      ASSERT_EQ(*again->Encode(text, {.parse_special = special, .add_bos = true}), *ids)
          << json(text).dump(-1, ' ', false, json::error_handler_t::replace) << ", special " << special;
      for (const bool skips : {true, false}) ASSERT_EQ(again->Decode(*ids, skips), ours->Decode(*ids, skips));
    }
  }
}

TEST_P(WrittenVocabulary, HasTheSameTokens) {
  const auto ours = TokenizerOf(vocabulary_), again = TokenizerOf(ReadAgain(vocabulary_));
  ASSERT_EQ(again->vocab_size(), ours->vocab_size());
  EXPECT_EQ(again->adds_bos(), ours->adds_bos());
  if (ours->adds_bos()) {
    EXPECT_EQ(again->bos_id(), ours->bos_id());
  }
  for (int32_t id = 0; id < ours->vocab_size(); ++id) {
    EXPECT_EQ(again->TokenBytes(id), ours->TokenBytes(id)) << id;
    EXPECT_EQ(again->IsSpecial(id), ours->IsSpecial(id)) << id;
  }
}

TEST_P(WrittenVocabulary, IsTheSameWhenItIsWrittenAgain) {
  EXPECT_EQ(*TokenizerJson(ReadAgain(vocabulary_)), *TokenizerJson(vocabulary_));
}

INSTANTIATE_TEST_SUITE_P(Families, WrittenVocabulary, testing::ValuesIn(Origins()), [](const auto& origin) {
  return absl::StrCat(std::get<0>(origin.param), "_", std::get<1>(origin.param));
});

// Bytes a, b and c, and what they merge to.
Vocabulary SmallVocabulary() {
  Vocabulary vocabulary;
  for (const char* text : {"a", "b", "c", "ab", "abc"}) vocabulary.tokens.push_back({text});
  vocabulary.byte_ids.fill(-1);
  for (int i = 0; i < 3; ++i) vocabulary.byte_ids[static_cast<size_t>('a' + i)] = i;
  vocabulary.merges = {{0, 1, 3}, {3, 2, 4}};
  return vocabulary;
}

Vocabulary SmallPieces() {
  Vocabulary vocabulary = SmallVocabulary();
  vocabulary.model = TokenModel::kPieceBpe;
  vocabulary.byte_ids.fill(-1);
  vocabulary.normalizer = {{.kind = NormalizerStep::Kind::kReplace, .from = " ", .to = kBlankMark}};
  return vocabulary;
}

void AddNamed(Vocabulary& vocabulary, NamedToken named) {
  const TokenKind kind = named.control ? TokenKind::kControl : TokenKind::kUserDefined;
  named.id = static_cast<int32_t>(vocabulary.tokens.size());
  vocabulary.tokens.push_back({named.name, kind});
  vocabulary.named.push_back(named);
}

json WrittenOf(const Vocabulary& vocabulary) {
  const auto written = TokenizerJson(vocabulary);
  EXPECT_TRUE(written.ok()) << written.status();
  return json::parse(*written);
}

// The library merges whatever it finds.
TEST(TokenizerJsonWriter, NoMergeMakesAControlToken) {
  Vocabulary vocabulary = SmallVocabulary();
  vocabulary.tokens[4].kind = TokenKind::kControl;
  vocabulary.named = {{.name = "abc", .id = 4, .control = true}};
  EXPECT_EQ(WrittenOf(vocabulary)["model"]["merges"], json::parse(R"([["a", "b"]])"));
}

// Ours finds them in the text as it came, whatever normalising makes of their names.
TEST(TokenizerJsonWriter, ControlTokensAreNotNormalized) {
  Vocabulary vocabulary = SmallVocabulary();
  AddNamed(vocabulary, {.name = "<end>", .control = true, .strip_left = true, .normalized = true});
  AddNamed(vocabulary, {.name = "<tool>", .strip_right = true, .single_word = true, .normalized = true});
  const json added = WrittenOf(vocabulary)["added_tokens"];
  EXPECT_EQ(added, json::parse(R"([
      {"id": 5, "content": "<end>", "single_word": false, "lstrip": true, "rstrip": false, "normalized": false,
       "special": true},
      {"id": 6, "content": "<tool>", "single_word": true, "lstrip": false, "rstrip": true, "normalized": true,
       "special": false}])"));
}

// GGUF files of Gemma have runs of blanks so; the library takes the id from the text.
TEST(TokenizerJsonWriter, RunsOfBlanksAreWrittenAsTheyAreFound) {
  Vocabulary vocabulary = SmallPieces();
  AddNamed(vocabulary, {.name = "\u2581\u2581", .normalized = true});
  vocabulary.tokens.back().text = "  ";
  EXPECT_EQ(WrittenOf(vocabulary)["model"]["vocab"]["\u2581\u2581"], 5);
  EXPECT_EQ(*TokenizerOf(ReadAgain(vocabulary))->Encode("a  b"), *TokenizerOf(vocabulary)->Encode("a  b"));
}

TEST(TokenizerJsonWriter, HolesBetweenIdsStay) {
  Vocabulary vocabulary = SmallVocabulary();
  vocabulary.tokens.push_back({"", TokenKind::kUnused});
  AddNamed(vocabulary, {.name = "<end>", .control = true});
  EXPECT_EQ(*TokenizerOf(ReadAgain(vocabulary))->Encode("ab<end>", {.parse_special = true}), (std::vector{3, 6}));
}

struct Unsayable {
  const char* name;
  std::function<void(Vocabulary&)> change;
  const char* words;
  bool pieces = false;
};

class UnsayableVocabulary : public testing::TestWithParam<Unsayable> {};

TEST_P(UnsayableVocabulary, SaysWhatCannotBeSaid) {
  Vocabulary vocabulary = GetParam().pieces ? SmallPieces() : SmallVocabulary();
  ASSERT_TRUE(TokenizerJson(vocabulary).ok()) << TokenizerJson(vocabulary).status();
  GetParam().change(vocabulary);
  const absl::Status status = TokenizerJson(vocabulary).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().words));
}

const Unsayable kUnsayables[] = {
    {"TwoTokensOfOneText", [](Vocabulary& v) { v.tokens.push_back({"ab"}); },
     "tokens 3 and 5 have the same text, 'ab'"},
    {"NoUtf8", [](Vocabulary& v) { v.tokens.push_back({"a\xff"}); }, "token 5 is no UTF-8"},
    {"AByteThatIsNotWrittenSo", [](Vocabulary& v) { v.byte_ids['a'] = 1; }, "byte 97"},
    {"ANameOfBytes", [](Vocabulary& v) { AddNamed(v, {.name = "\u00e9\u00e9"}); },
     "token 5, '\u00e9\u00e9', would be decoded"},
    {"AMergeThatIsNone",
     [](Vocabulary& v) {
       v.merges.push_back({0, 2, 3});
     },
     "'a' and 'c' become 'ab'"},
    {"TextRulesBehindByteRules",
     [](Vocabulary& v) {
       v.splits = {{.pattern = "a", .over_alphabet = true}, {.pattern = "b"}};
     },
     "no word for cuts of a text behind"},
    {"ABlankBeforeOtherCuts",
     [](Vocabulary& v) {
       v.blanks.prefix = BlankMarks::Prefix::kAlways;
       v.splits = {{.pattern = "a"}};
     },
     "a blank before texts that are then cut otherwise"},
    {"AnotherMark", [](Vocabulary& v) { v.blanks.mark = "_"; }, "'_' in the place of blanks", true},
    {"BytesRulesOfPieces", [](Vocabulary& v) { v.splits = {{.pattern = "a", .over_alphabet = true}}; },
     "cuts in the byte alphabet", true},
    {"BytesInSmallLetters",
     [](Vocabulary& v) {
       v.tokens.push_back({"<0x0a>", TokenKind::kByte});
       v.byte_ids[10] = 5;
     },
     "byte 10 does not have the token <0x0A>", true},
    {"ABlankThatIsFoundAsAMark",
     [](Vocabulary& v) {
       AddNamed(v, {.name = kBlankMark, .normalized = true});
       v.tokens.back().text = " ";
     },
     "token 5, ' ', is found as", true},
    {"BosWithoutText",
     [](Vocabulary& v) {
       v.tokens.push_back({""});
       v.bos = 5;
       v.adds_bos = true;
     },
     "token 5 has no text"},
    {"NoTextAtAll",
     [](Vocabulary& v) {
       for (VocabularyToken& token : v.tokens) token.text.clear();
     },
     "no token has a text"},
    {"WholeWordsOfPieces", [](Vocabulary& v) { v.whole_words_first = true; }, "whole words first", true},
    {"AUnigramWithoutUnknown",
     [](Vocabulary& v) {
       v.model = TokenModel::kUnigram;
       v.scores.resize(v.tokens.size());
       v.fuse_unknown = true;
     },
     "no unknown token", true},
};
INSTANTIATE_TEST_SUITE_P(All, UnsayableVocabulary, testing::ValuesIn(kUnsayables),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace runahead
