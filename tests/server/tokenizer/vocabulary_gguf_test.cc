#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/tokenizer/text_stream.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/vocabulary.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/parsed_gguf.h"

namespace runahead {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// SentencePiece's part of a GGUF file: <unk>, <s>, </s>, all bytes, then pieces. Tests change what they are about.
struct SentencePieceFile {
  std::string model = "llama";
  std::string architecture = "llama";
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};
  std::vector<float> scores = {0, 0, 0};
  std::optional<bool> add_space_prefix;
  std::optional<bool> add_bos;
  std::optional<bool> squeeze;
  uint32_t bos = 1;
  std::vector<int32_t> ends;
  std::optional<uint32_t> end_of_turn, end_of_message;

  SentencePieceFile() {
    for (int byte = 0; byte < 256; ++byte) Add(absl::StrFormat("<0x%02X>", byte), 0, 6);
    for (const char* piece : {"\u2581", "a", "b", "\u2581a", "ab", "\u2581\u2581"})
      Add(piece, -static_cast<float>(tokens.size()));
  }

  int32_t Add(const std::string& token, float score, int32_t type = 1) {
    tokens.push_back(token);
    types.push_back(type);
    scores.push_back(score);
    return static_cast<int32_t>(tokens.size()) - 1;
  }

  std::string Build() const {
    GgufBuilder builder;
    builder.AddString("general.architecture", architecture);
    builder.AddString("tokenizer.ggml.model", model);
    builder.AddStrings("tokenizer.ggml.tokens", tokens);
    builder.AddInts("tokenizer.ggml.token_type", types);
    builder.AddFloats("tokenizer.ggml.scores", scores);
    builder.AddUint32("tokenizer.ggml.bos_token_id", bos);
    builder.AddUint32("tokenizer.ggml.eos_token_id", 2);
    if (add_space_prefix) builder.AddBool("tokenizer.ggml.add_space_prefix", *add_space_prefix);
    if (add_bos) builder.AddBool("tokenizer.ggml.add_bos_token", *add_bos);
    if (squeeze) builder.AddBool("tokenizer.ggml.remove_extra_whitespaces", *squeeze);
    if (!ends.empty()) builder.AddInts("tokenizer.ggml.eos_token_ids", ends);
    if (end_of_turn) builder.AddUint32("tokenizer.ggml.eot_token_id", *end_of_turn);
    if (end_of_message) builder.AddUint32("tokenizer.ggml.eom_token_id", *end_of_message);
    return builder.Build();
  }

  absl::StatusOr<std::shared_ptr<const Tokenizer>> Load() const {
    const auto file = ParseGguf(Build());
    return file.ok() ? Tokenizer::FromModel(**file) : file.status();
  }
};

std::string PieceRefusal(const SentencePieceFile& file) {
  const auto tokenizer = file.Load();
  EXPECT_FALSE(tokenizer.ok());
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("test.gguf"));
  return std::string(tokenizer.status().message());
}

// As the tokens' own texts.
std::vector<std::string> Pieces(const SentencePieceFile& file, std::string_view text, bool special = false) {
  const auto tokenizer = file.Load();
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<int32_t> ids = *(*tokenizer)->Encode(text, {.parse_special = special, .add_bos = false});
  std::vector<std::string> pieces;
  for (const int32_t id : ids) {
    pieces.push_back(file.tokens[static_cast<size_t>(id)]);
  }
  return pieces;
}

TEST(SentencePieceGguf, BlanksAreMarksAndATextBeginsWithOne) {
  const SentencePieceFile file;
  EXPECT_THAT(Pieces(file, "a ab"), ElementsAre("\u2581a", "\u2581a", "b"));  // of better score than ab
  EXPECT_THAT(Pieces(file, "  b"), ElementsAre("\u2581\u2581", "\u2581", "b"));
  EXPECT_THAT(Pieces(file, ""), ElementsAre());
  SentencePieceFile bare;
  bare.add_space_prefix = false;
  EXPECT_THAT(Pieces(bare, "ab a"), ElementsAre("ab", "\u2581a"));
}

TEST(SentencePieceGguf, WhatHasNoTokenIsItsBytes) {
  const SentencePieceFile file;
  EXPECT_THAT(Pieces(file, "aé"), ElementsAre("\u2581a", "<0xC3>", "<0xA9>"));
  EXPECT_THAT(Pieces(file, "a\xff"), ElementsAre("\u2581a", "<0xFF>"));
}

TEST(SentencePieceGguf, WithoutBytesItIsUnknown) {
  SentencePieceFile file;
  for (int32_t& type : file.types) type = type == 6 ? 1 : type;
  EXPECT_THAT(Pieces(file, "aéé b"), ElementsAre("\u2581a", "<unk>", "\u2581", "b"));
}

TEST(SentencePieceGguf, BytesAndBlanksComeBack) {
  const SentencePieceFile file;
  const auto tokenizer = *file.Load();
  for (const std::string text : {"a ab", " a", "  é\n", "\u2581", "", "😀 <0x41>"}) {
    const std::vector<int32_t> ids = *tokenizer->Encode(text, {.add_bos = false});
    EXPECT_EQ(tokenizer->Decode(ids, true), text == "\u2581" ? " " : text);
    TextStream stream(tokenizer, true);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.Feed(id);
    EXPECT_EQ(streamed + stream.Finish(), tokenizer->Decode(ids, true));
  }
  const int32_t with_blank = 3 + 256 + 3;
  EXPECT_EQ(tokenizer->TokenBytes(with_blank), " a");
  EXPECT_EQ(tokenizer->Decode({with_blank, with_blank}, true), "a a");
  EXPECT_EQ(tokenizer->Decode({1, with_blank}, true), "a");
  EXPECT_EQ(tokenizer->Decode({1, with_blank}, false), "<s> a");
}

TEST(SentencePieceGguf, SpecialTokensBeginANewText) {
  const SentencePieceFile file;
  EXPECT_THAT(Pieces(file, "a</s>a", true), ElementsAre("\u2581a", "</s>", "\u2581a"));
  EXPECT_EQ(Pieces(file, "</s>").size(), 5u);  // text like any other: a mark and four characters
}

TEST(SentencePieceGguf, UserDefinedTokensOfBlanksAreFoundInTheText) {
  // Converters write them with marks or with blanks. No merges lead to five of them.
  for (const std::string run : {"\u2581\u2581\u2581\u2581\u2581", "     "}) {
    SentencePieceFile file;
    file.add_space_prefix = false;
    file.Add(run, 0, 4);
    EXPECT_THAT(Pieces(file, "a      a"), ElementsAre("a", run, "\u2581a"));
    EXPECT_EQ((*file.Load())->Decode({static_cast<int32_t>(file.tokens.size()) - 1}, true), "     ");
  }
}

TEST(SentencePieceGguf, PhiThreesTokensTakeWhiteSpaceBehindThem) {
  SentencePieceFile file;
  const int32_t user = file.Add("<|user|>", 0, 3);
  const int32_t end = file.Add("<|end|>", 0, 3);
  file.Add("<|endoftext|>", 0, 3);
  EXPECT_THAT(Pieces(file, "<|user|>\n a", true), ElementsAre("<|user|>", "\u2581", "<0x0A>", "\u2581a"));
  file.architecture = "phi3";
  EXPECT_THAT(Pieces(file, "<|user|>\n a<|end|>\u3000", true), ElementsAre("<|user|>", "\u2581a", "<|end|>"));
  EXPECT_THAT(Pieces(file, "<|endoftext|> a", true), ElementsAre("<|endoftext|>", "\u2581", "\u2581a"));
  const auto tokenizer = *file.Load();
  // White space of the next part, too.
  const std::vector<TextPart> parts = {{"<|user|>\n", true}, {" \t", false}, {" a ", false}, {" <|end|>", true}};
  const std::vector<int32_t> ids = *tokenizer->EncodeParts(parts);
  EXPECT_EQ(ids.front(), user);
  EXPECT_EQ(ids.back(), end);
  EXPECT_EQ(ids, *tokenizer->Encode("<|user|>\n \t a  <|end|>", {.parse_special = true, .add_bos = false}));
  EXPECT_THAT(tokenizer->end_ids(), testing::Contains(end));
}

TEST(SentencePieceGguf, BosAndEnds) {
  SentencePieceFile file;
  EXPECT_TRUE((*file.Load())->adds_bos());
  EXPECT_EQ((*(*file.Load())->Encode("a")).front(), 1);
  file.add_bos = false;
  EXPECT_FALSE((*file.Load())->adds_bos());
  EXPECT_THAT((*file.Load())->end_ids(), ElementsAre(2));
  file.ends = {5, 2, 5, -1, 32000};
  EXPECT_THAT((*file.Load())->end_ids(), ElementsAre(2, 5));
  file.end_of_turn = 7;
  file.end_of_message = 8;
  EXPECT_THAT((*file.Load())->end_ids(), ElementsAre(2, 5, 7, 8));
  file.end_of_message = 100'000;
  EXPECT_THAT(PieceRefusal(file), HasSubstr("tokenizer.ggml.eom_token_id is 100000; the vocabulary ends at"));
  file.end_of_turn.reset();
  file.end_of_message.reset();
  const int32_t turn = file.Add("<end_of_turn>", 0, 4);
  EXPECT_THAT((*file.Load())->end_ids(), ElementsAre(2, 5, turn));
  EXPECT_TRUE((*file.Load())->IsSpecial(turn));
  file.types[2] = 4;  // as Gemma has </s>: a tag of HTML
  file.ends.clear();
  EXPECT_FALSE((*file.Load())->IsSpecial(2));
}

TEST(SentencePieceGguf, UnigramByTheSumOfScores) {
  SentencePieceFile file;
  file.model = "t5";
  file.add_bos = false;
  file.scores.assign(file.scores.size(), -10);
  file.Add("bab", -1);
  EXPECT_THAT(Pieces(file, "bab  a "), ElementsAre("\u2581", "bab", "\u2581", "\u2581a", "\u2581"));
  file.squeeze = true;
  EXPECT_THAT(Pieces(file, " bab  a "), ElementsAre("\u2581", "bab", "\u2581a"));
}

TEST(SentencePieceGguf, RefusalsNameWhatIsWrong) {
  SentencePieceFile file;
  file.scores.pop_back();
  EXPECT_THAT(PieceRefusal(file), HasSubstr("tokenizer.ggml.scores has 264 entries for 265 tokens"));
  file = {};
  file.scores[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(PieceRefusal(file),
              HasSubstr("element 7 of metadata key 'tokenizer.ggml.scores' is not a finite number"));
  file = {};
  file.tokens[10] = "<0x0G>";
  EXPECT_THAT(PieceRefusal(file), HasSubstr("token 10 '<0x0G>' is of type byte, but not of the form <0x00>"));
  file.tokens[10] = "<0x0\x1b\xff>";
  EXPECT_THAT(PieceRefusal(file), HasSubstr("token 10 '<0x0\\x1b\\xff>' is of type byte"));
  file = {};
  const int32_t longest = file.Add(std::string(1025, 'x'), 0);
  EXPECT_THAT(PieceRefusal(file), HasSubstr("token " + std::to_string(longest) + " has 1025 bytes; at most 1024"));
  file = {};
  file.bos = 1u << 31;
  EXPECT_THAT(PieceRefusal(file), HasSubstr("tokenizer.ggml.bos_token_id is 2147483648; the vocabulary ends at 264"));
}

TEST(SentencePieceGguf, AMegabyteOfAnything) {
  SentencePieceFile file;
  const auto bpe = *file.Load();
  file.model = "t5";
  const auto unigram = *file.Load();
  for (const std::string unit : {"a", " ", "é", "\xff", "\u2581", "ab "}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    for (const auto& tokenizer : {bpe, unigram}) {
      const auto ids = tokenizer->Encode(text, {.add_bos = false});
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_LE(tokenizer->LeastTokens({text}), static_cast<int64_t>(ids->size()));
      EXPECT_GE(tokenizer->LeastTokens({text}), static_cast<int64_t>(text.size()) / 16);
      int asked = 0;
      const auto end_soon = [&asked] { return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("gone"); };
      EXPECT_EQ(tokenizer->Encode(text, {}, end_soon).status().code(), absl::StatusCode::kCancelled);
    }
  }
}

// Any file gives a tokenizer or an error, whichever byte of it is another.
TEST(SentencePieceGguf, DamagedFiles) {
  const std::string whole = SentencePieceFile().Build();
  for (size_t at = 0; at < whole.size(); at += 7) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    const auto file = ParseGguf(damaged);
    if (!file.ok()) continue;
    const auto tokenizer = Tokenizer::FromModel(**file);
    if (!tokenizer.ok()) continue;
    EXPECT_TRUE((*tokenizer)->Encode("a ab </s>é", {.parse_special = true}).ok());
  }
}

}  // namespace
}  // namespace runahead
