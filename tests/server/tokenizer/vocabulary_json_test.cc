#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/text_stream.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/testing/tokenizer_json.h"

namespace runahead {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// A byte-level tokenizer.json: all bytes (by their number), "th" and "the" by merges, <|end|> special, <tool> added.
json ByteLevelJson() {
  json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[ByteToAlphabet(static_cast<unsigned char>(byte))] = byte;
  vocab["th"] = 256;
  vocab["the"] = 257;
  vocab["whole"] = 258;
  const auto added = [](int id, const char* content, bool special) {
    return json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", special}};
  };
  return {{"added_tokens", {added(259, "<|end|>", true), added(260, "<tool>", false)}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", {{"type", "ByteLevel"}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"t h", "th e"}}}}};
}

// One as Llama 2's is: <unk>, <s>, </s>, the marks and three letters; of the bytes only those of é.
json PieceJson() {
  json vocab = {{"<unk>", 0}, {"<s>", 1},     {"</s>", 2}, {"\u2581", 3}, {"a", 4},
                {"b", 5},     {"\u2581a", 6}, {"ab", 7},   {"<0xC3>", 8}, {"<0xA9>", 9}};
  const auto special = [](int id, const char* content) {
    return json{{"id", id}, {"content", content}, {"normalized", false}, {"special", true}};
  };
  return {{"added_tokens", {special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single",
             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", json::array({json::array({"\u2581", "a"}), json::array({"a", "b"})})}}}};
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadJson(const json& tokenizer, const json& config = nullptr) {
  const auto file = ModelOfTokenizerJson(tokenizer.dump(), config.is_null() ? "" : config.dump());
  return file.ok() ? Tokenizer::FromModel(**file) : file.status();
}

std::string JsonTokenizerRefusal(const json& tokenizer, const json& config = nullptr) {
  const auto loaded = LoadJson(tokenizer, config);
  EXPECT_FALSE(loaded.ok());
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("test.gguf: tokenizer"));
  return std::string(loaded.status().message());
}

std::vector<int32_t> IdsBy(const json& tokenizer, std::string_view text) {
  const auto loaded = LoadJson(tokenizer);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *(*loaded)->Encode(text, {.parse_special = true, .add_bos = false});
}

TEST(TokenizerJson, ByteLevel) {
  const json file = ByteLevelJson();
  EXPECT_THAT(IdsBy(file, "the<|end|>th<tool>"), ElementsAre(257, 259, 256, 260));
  EXPECT_THAT(IdsBy(file, "whole"), testing::SizeIs(5));
  const auto tokenizer = *LoadJson(file);
  EXPECT_TRUE(tokenizer->IsSpecial(259));
  EXPECT_FALSE(tokenizer->IsSpecial(260));
  EXPECT_THAT(tokenizer->end_ids(), ElementsAre(259));
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->Decode(IdsBy(file, "the 你好<tool>"), true), "the 你好<tool>");
}

TEST(TokenizerJson, WholeWordsFirst) {
  json file = ByteLevelJson();
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(IdsBy(file, "whole"), ElementsAre(258));
}

TEST(TokenizerJson, APrefixedBlank) {
  json file = ByteLevelJson();
  file["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_THAT(IdsBy(file, "a"), ElementsAre(' ', 'a'));
  EXPECT_THAT(IdsBy(file, " a<tool>b"), ElementsAre(' ', 'a', 260, ' ', 'b'));
}

TEST(TokenizerJson, SplitsInTheByteAlphabet) {
  json file = ByteLevelJson();
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}},
        {{"type", "Split"}, {"pattern", {{"String", "\u0120"}}}, {"behavior", "Removed"}, {"invert", false}},
        {{"type", "Digits"}, {"individual_digits", true}}}}};
  EXPECT_THAT(IdsBy(file, "a b1²"), ElementsAre('a', 'b', '1', 0xc2, 0xb2));
}

TEST(TokenizerJson, NormalizedTokensAreFoundInTheNormalisedText) {
  json file = ByteLevelJson();
  file["normalizer"] = {{"type", "NFKC"}};
  file["added_tokens"][1]["normalized"] = true;
  EXPECT_THAT(IdsBy(file, "\uff1ctool\uff1e"), ElementsAre(260));
  file["added_tokens"][1]["lstrip"] = true;
  file["added_tokens"][1]["rstrip"] = true;
  EXPECT_THAT(IdsBy(file, "a <tool>\n b"), ElementsAre('a', 260, 'b'));
}

TEST(TokenizerJson, NormalizedTokensAreWhatTheNormaliserMakesOfTheirNames) {
  json file = PieceJson();
  file["added_tokens"].push_back({{"id", 10}, {"content", "<b a>"}, {"normalized", true}, {"special", false}});
  EXPECT_THAT(IdsBy(file, "<b a>"), ElementsAre(10));
  EXPECT_THAT(IdsBy(file, "a <b a>b"), ElementsAre(6, 10, 5));
  EXPECT_THAT(IdsBy(file, "a<b a>"), testing::Not(testing::Contains(10)));  // there is no blank before it
}

TEST(TokenizerJson, TokensTakeWhiteSpaceOfTheTextBesideThem) {
  json file = ByteLevelJson();
  file["added_tokens"][1]["lstrip"] = true;
  EXPECT_THAT(IdsBy(file, "a \t<tool> b"), ElementsAre('a', 260, ' ', 'b'));
  const auto tokenizer = *LoadJson(file);
  EXPECT_THAT(*tokenizer->EncodeParts({{"a ", false}, {"\n", false}, {" <tool>", false}}), ElementsAre('a', 260));
  EXPECT_THAT(*tokenizer->EncodeParts({{"a ", false}, {"b <tool>", false}}), ElementsAre('a', ' ', 'b', 260));
}

TEST(TokenizerJson, ControlTokensSteerWhateverIsNormalised) {
  json file = PieceJson();
  for (json& token : file["added_tokens"]) token["normalized"] = true;
  EXPECT_THAT(IdsBy(file, "a</s>a"), ElementsAre(6, 2, 6));
  const std::vector<int32_t> text = *(*LoadJson(file))->Encode("a</s>a", {.add_bos = false});
  EXPECT_THAT(text, testing::Not(testing::Contains(2)));
}

TEST(TokenizerJson, SentencePiece) {
  const json file = PieceJson();
  EXPECT_THAT(IdsBy(file, "a ab"), ElementsAre(6, 6, 5));
  EXPECT_THAT(IdsBy(file, "aéx y"), ElementsAre(6, 8, 9, 0, 3, 0));
  EXPECT_THAT(IdsBy(file, "a</s>a"), ElementsAre(6, 2, 6));
  const auto tokenizer = *LoadJson(file);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_THAT(*tokenizer->Encode("a"), ElementsAre(1, 6));
  EXPECT_THAT(tokenizer->end_ids(), ElementsAre(2));
  EXPECT_EQ(tokenizer->Decode({1, 6, 6, 8, 9}, true), "a aé");
  EXPECT_EQ(tokenizer->Decode({1, 6, 2}, false), "<s> a</s>");
}

TEST(TokenizerJson, LeastTokensCountsNothingThatMayFuseOrVanish) {
  json file = PieceJson();
  std::string unknown;
  for (int i = 0; i < 1000; ++i) unknown += "ê";  // C3 has a token, AA has none
  EXPECT_THAT(*(*LoadJson(file))->Encode(unknown, {.add_bos = false}), ElementsAre(3, 0));
  EXPECT_LE((*LoadJson(file))->LeastTokens({unknown}), 2);
  EXPECT_GE((*LoadJson(file))->LeastTokens({std::string(1000, 'a')}), 100);
  file["normalizer"]["normalizers"].push_back({{"type", "NFC"}});
  EXPECT_EQ((*LoadJson(file))->LeastTokens({std::string(1000, 'a')}), 0);  // marks may make another letter of each
  file = ByteLevelJson();
  file["normalizer"] = {{"type", "Strip"}};
  EXPECT_EQ((*LoadJson(file))->LeastTokens({std::string(1000, ' ')}), 0);
}

TEST(TokenizerJson, MetaspaceAtTheVeryBeginOnly) {
  json file = PieceJson();
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", false}};
  EXPECT_THAT(IdsBy(file, "a</s>a a"), ElementsAre(6, 2, 4, 6));
  EXPECT_THAT(IdsBy(file, " a"), ElementsAre(6));  // a text that begins with one gets none
  EXPECT_THAT(IdsBy(file, "</s>a"), ElementsAre(2, 4));
  file["pre_tokenizer"]["prepend_scheme"] = "always";
  EXPECT_THAT(IdsBy(file, "a</s>a"), ElementsAre(6, 2, 6));
  file["pre_tokenizer"]["prepend_scheme"] = "never";
  EXPECT_THAT(IdsBy(file, "a a"), ElementsAre(4, 6));
}

TEST(TokenizerJson, Unigram) {
  json file = PieceJson();
  file["model"] = {
      {"type", "Unigram"},
      {"unk_id", 0},
      {"byte_fallback", false},
      {"vocab", json::array({{"<unk>", 0}, {"<s>", 0}, {"</s>", 0}, {"\u2581", -3}, {"a", -2}, {"aa", -5}})}};
  EXPECT_THAT(IdsBy(file, "aa xyz"), ElementsAre(3, 4, 4, 3, 0));
  file["model"]["vocab"][5][1] = -3.5;
  EXPECT_THAT(IdsBy(file, "aa"), ElementsAre(3, 5));
}

TEST(TokenizerJson, WithoutADecoderTextIsPutTogetherAsItWasTakenApart) {
  for (json file : {ByteLevelJson(), PieceJson()}) {
    const auto with = *LoadJson(file);
    file["decoder"] = nullptr;
    const auto without = LoadJson(file);
    ASSERT_TRUE(without.ok()) << without.status();
    for (const char* text : {"the the", " a ab", "\xc3\xa9", ""}) {
      const std::vector<int32_t> ids = *with->Encode(text);
      EXPECT_EQ(*(*without)->Encode(text), ids);
      EXPECT_EQ((*without)->Decode(ids, true), with->Decode(ids, true));
    }
    file["pre_tokenizer"] = nullptr;
    file["normalizer"] = nullptr;
    EXPECT_THAT(JsonTokenizerRefusal(file), HasSubstr("'decoder' is missing, and the steps before do not say"));
  }
}

TEST(TokenizerJson, TheMetaspaceDecoderTakesAllMarksOfTheFirstToken) {
  json file = PieceJson();
  file["decoder"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  const auto tokenizer = *LoadJson(file);
  EXPECT_EQ(tokenizer->Decode({1, 3, 3, 6}, true), "  a");
  EXPECT_EQ(tokenizer->Decode({8, 9}, true), "<0xC3><0xA9>");  // it knows no bytes
}

TEST(TokenizerJson, TheConfigurationNamesBosAndEos) {
  const json file = ByteLevelJson();
  auto tokenizer =
      *LoadJson(file, {{"bos_token", nullptr}, {"eos_token", {{"content", "the"}}}, {"add_bos_token", false}});
  EXPECT_EQ(tokenizer->eos_id(), 257);
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_THAT(tokenizer->end_ids(), ElementsAre(257, 259));
  tokenizer = *LoadJson(file, {{"bos_token", "<|end|>"}, {"add_bos_token", true}});
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->bos_id(), 259);
  EXPECT_FALSE((*LoadJson(PieceJson(), {{"add_bos_token", false}}))->adds_bos());
  EXPECT_THAT(JsonTokenizerRefusal(file, {{"add_bos_token", true}, {"bos_token", "<none>"}}),
              HasSubstr("no bos_token"));
  EXPECT_THAT(JsonTokenizerRefusal(file, {{"bos_token", 7}}),
              HasSubstr("tokenizer_config.json.bos_token: must be a string"));
}

TEST(TokenizerJson, TheClassThatTheConfigurationNamesSaysHowTextsBegin) {
  const json file = ByteLevelJson();
  const auto begins = [&](const char* name, const json& more) {
    json config = more;
    config["tokenizer_class"] = name;
    config["bos_token"] = "<|end|>";
    return (*LoadJson(file, config))->adds_bos();
  };
  EXPECT_TRUE(begins("LlamaTokenizer", json::object()));
  EXPECT_TRUE(begins("LlamaTokenizerFast", json::object()));
  EXPECT_FALSE(begins("LlamaTokenizer", {{"add_bos_token", false}}));
  EXPECT_FALSE(begins("GPTNeoXTokenizer", json::object()));
  EXPECT_TRUE(begins("GPTNeoXTokenizer", {{"add_bos_token", true}}));
  EXPECT_FALSE(begins("PreTrainedTokenizerFast", {{"add_bos_token", true}}));
}

TEST(TokenizerJson, TokensOfTheConfigurationAreAddedToThoseOfTheFile) {
  const json file = ByteLevelJson();
  EXPECT_FALSE((*LoadJson(file))->IsSpecial(257));
  EXPECT_TRUE((*LoadJson(file, {{"pad_token", "the"}}))->IsSpecial(257));
  EXPECT_TRUE((*LoadJson(file, {{"additional_special_tokens", {"the"}}}))->IsSpecial(257));
  EXPECT_TRUE((*LoadJson(file, {{"added_tokens_decoder", {{"257", {{"content", "the"}, {"special", true}}}}}}))
                  ->IsSpecial(257));
  const auto next = (*LoadJson(file))->vocab_size();
  const auto with = [&](int64_t id) {
    return (*LoadJson(file,
                      {{"added_tokens_decoder", {{std::to_string(id), {{"content", "<new>"}, {"special", true}}}}}}))
        ->vocab_size();
  };
  EXPECT_EQ(with(next), next + 1);
  EXPECT_EQ(with(next + 1), next) << "which no file places";
  EXPECT_THAT(JsonTokenizerRefusal(file, {{"added_tokens_decoder", {{"x", {{"content", "<new>"}}}}}}),
              HasSubstr("must be a token's id"));
}

TEST(TokenizerJson, UsersTextNeverMergesIntoAControlToken) {
  json file = ByteLevelJson();
  file["pre_tokenizer"]["use_regex"] = false;
  file["model"]["vocab"]["<|"] = 261;
  file["model"]["vocab"]["end|>"] = 262;
  file["model"]["vocab"]["<|end|>"] = 259;
  for (const char* merge : {"< |", "e n", "en d", "| >", "end |>", "<| end|>"})
    file["model"]["merges"].push_back(merge);
  file["model"]["vocab"]["en"] = 263;
  file["model"]["vocab"]["end"] = 264;
  file["model"]["vocab"]["|>"] = 265;
  const auto tokenizer = *LoadJson(file);
  const std::vector<int32_t> ids = *tokenizer->Encode("<|end|>");
  EXPECT_THAT(ids, testing::Not(testing::Contains(259)));
  EXPECT_THAT(ids, testing::Contains(262));
}

TEST(TokenizerJson, HolesBetweenIdsAreNothing) {
  json file = ByteLevelJson();
  file["added_tokens"][1]["id"] = 1000;
  const auto tokenizer = *LoadJson(file);
  EXPECT_EQ(tokenizer->vocab_size(), 1001);
  EXPECT_EQ(tokenizer->TokenBytes(500), "");
  EXPECT_THAT(IdsBy(file, "<tool>"), ElementsAre(1000));
}

TEST(TokenizerJson, TheBlankAtTheBeginIsTheTextsWhateverStandsBefore) {
  json file = PieceJson();
  file["added_tokens"].push_back({{"id", 20}, {"content", "<tool>"}, {"normalized", false}, {"special", true}});
  const auto tokenizer = *LoadJson(file);
  EXPECT_EQ(tokenizer->Decode({15, 6, 6}, true), "a a");  // the first is no token at all
  EXPECT_EQ(tokenizer->Decode({20, 6}, true), "a");
  EXPECT_EQ(tokenizer->Decode({20, 6}, false), "<tool> a");
}

// What is changed in a good file, and what the refusal says.
TEST(TokenizerJson, RefusalsNameThePlace) {
  struct Change {
    const char* pointer;
    json value;
    const char* message;
  };
  const Change changes[] = {
      {"/model/type", "WordPiece", "model: type 'WordPiece' is not supported"},
      {"/model/vocab/th", -1, "model.vocab.th: id -1 is negative"},
      {"/model/vocab/th", "x", "model.vocab.th: must be an integer"},
      {"/model/vocab/th", 2147483648, "id 2147483648 is far beyond the number of tokens"},
      {"/model/vocab/th", 257, "is 'the' here, and 'th' elsewhere"},
      {"/model/vocab", json::array(), "model.vocab: must be an object"},
      {"/model/merges/1", "q zz", "model.merges[1]: 'q zz' joins or makes what is not in the vocabulary"},
      {"/model/merges/1", 5, "model.merges[1]: must be an array"},
      {"/model/merges/1", json::array({"t"}), "model.merges[1]: has 1 parts"},
      {"/model/merges", nullptr, "model: 'merges' is missing"},
      {"/model/dropout", 0.1, "model.dropout: is 0.1"},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix '</w>' is not supported"},
      {"/model/unk_token", "<unk>", "unk_token '<unk>' is no token"},
      {"/added_tokens/0/id", 5, "id 5 is '<|end|>' here"},
      {"/added_tokens/0/content", "the", "'the' has several ids"},
      {"/added_tokens/0/special", 1, "added_tokens[0].special: must be true or false"},
      {"/added_tokens", 1, "added_tokens: must be an array"},
      {"/normalizer", {{"type", "Precompiled"}}, "normalizer: type 'Precompiled' is not supported"},
      {"/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "\\w"}}}, {"content", ""}}, "pattern '\\w'"},
      {"/pre_tokenizer", {{"type", "BertPreTokenizer"}}, "pre_tokenizer: type 'BertPreTokenizer' is not supported"},
      {"/pre_tokenizer", nullptr, "decoder: must replace marks by blanks"},
      {"/pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers", {{{"type", "ByteLevel"}, {"add_prefix_space", false}}, {{"type", "ByteLevel"}}}}},
       "pre_tokenizer.pretokenizers[1]: a second ByteLevel"},
      {"/post_processor", {{"type", "BertProcessing"}}, "post_processor: type 'BertProcessing' is not supported"},
      {"/decoder", {{"type", "WordPiece"}}, "decoder: type 'WordPiece' is not supported"},
      {"/model", nullptr, "'model' is missing"},
  };
  for (const Change& change : changes) {
    json file = ByteLevelJson();
    file[json::json_pointer(change.pointer)] = change.value;
    EXPECT_THAT(JsonTokenizerRefusal(file), HasSubstr(change.message)) << change.pointer;
  }
}

// Any text gives a tokenizer or an error, wherever it ends and whichever byte of it is another.
TEST(TokenizerJson, DamagedFiles) {
  for (const json& file : {ByteLevelJson(), PieceJson()}) {
    const std::string whole = file.dump();
    for (size_t at = 0; at < whole.size(); at += 11) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 7)));
      for (const std::string& text : {whole.substr(0, at), damaged}) {
        const auto model = ModelOfTokenizerJson(text);
        const auto tokenizer = Tokenizer::FromModel(**model);
        if (!tokenizer.ok()) continue;
        EXPECT_TRUE((*tokenizer)->Encode("the ab </s>é", {.parse_special = true}).ok());
      }
    }
  }
}

}  // namespace
}  // namespace runahead
