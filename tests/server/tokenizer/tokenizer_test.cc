#include "server/tokenizer/tokenizer.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/tokenizer/text_stream.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/parsed_gguf.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The tokenizer's part of a file; tests change what they are about.
struct TokenizerFile {
  std::string model = "gpt2";
  std::optional<std::string> pre = "smollm";
  SyntheticVocabulary vocabulary = MakeSyntheticVocabulary(400);
  std::optional<uint32_t> bos = kSyntheticImStart;
  std::optional<uint32_t> eos = kSyntheticImEnd;
  std::optional<bool> add_bos;

  // Appends a token and gives its id.
  int32_t Add(const std::string& token, int32_t type) {
    vocabulary.tokens.push_back(token);
    vocabulary.types.push_back(type);
    return static_cast<int32_t>(vocabulary.tokens.size()) - 1;
  }

  absl::StatusOr<std::shared_ptr<const Tokenizer>> Load() const {
    GgufBuilder builder;
    builder.AddString("tokenizer.ggml.model", model);
    if (pre) builder.AddString("tokenizer.ggml.pre", *pre);
    builder.AddStrings("tokenizer.ggml.tokens", vocabulary.tokens);
    if (!vocabulary.types.empty()) builder.AddInts("tokenizer.ggml.token_type", vocabulary.types);
    builder.AddStrings("tokenizer.ggml.merges", vocabulary.merges);
    if (bos) builder.AddUint32("tokenizer.ggml.bos_token_id", *bos);
    if (eos) builder.AddUint32("tokenizer.ggml.eos_token_id", *eos);
    if (add_bos) builder.AddBool("tokenizer.ggml.add_bos_token", *add_bos);
    const auto file = ParseGguf(builder.Build());
    if (!file.ok()) return file.status();
    return Tokenizer::FromModel(**file);
  }
};

std::string Refusal(const TokenizerFile& file) {
  const auto tokenizer = file.Load();
  EXPECT_FALSE(tokenizer.ok());
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("test.gguf"));
  return std::string(tokenizer.status().message());
}

using Ids = std::vector<int32_t>;

Ids Encoded(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options = {}) {
  absl::StatusOr<Ids> ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *std::move(ids) : Ids();
}

Ids EncodedParts(const Tokenizer& tokenizer, const std::vector<TextPart>& parts) {
  absl::StatusOr<Ids> ids = tokenizer.EncodeParts(parts);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *std::move(ids) : Ids();
}

constexpr EncodeOptions kSpecial = {.parse_special = true};

TEST(Tokenizer, TextComesBackFromItsIds) {
  const auto tokenizer = *TokenizerFile().Load();
  for (const std::string text : {"", "Hello, world!", "the thing and 1234", " \t\n\r ", "Xin chào 你好 مرحبا",
                                 "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb"}) {
    EXPECT_EQ(tokenizer->Decode(Encoded(*tokenizer, text), false), text);
  }
  EXPECT_TRUE(Encoded(*tokenizer, "").empty());
}

TEST(Tokenizer, BytesThatAreNoUtf8SurviveInTheTokens) {
  const auto tokenizer = *TokenizerFile().Load();
  std::mt19937 random(9);
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    for (size_t n = random() % 40; n > 0; --n) bytes += static_cast<char>(random() % 256);
    std::string back;
    for (int32_t id : Encoded(*tokenizer, bytes)) back += tokenizer->TokenBytes(id);
    EXPECT_EQ(back, bytes);
  }
}

TEST(Tokenizer, ControlTokensOnlyWhereAskedFor) {
  const auto tokenizer = *TokenizerFile().Load();
  const auto ids = Encoded(*tokenizer, "a<|im_end|>b<|im_end", kSpecial);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kSyntheticImEnd), 1);
  EXPECT_EQ(tokenizer->Decode(ids, false), "a<|im_end|>b<|im_end");
  EXPECT_EQ(tokenizer->Decode(ids, true), "ab<|im_end");
  for (int32_t id : Encoded(*tokenizer, "a<|im_end|>b")) EXPECT_FALSE(tokenizer->IsSpecial(id));
}

TEST(Tokenizer, TheLongestSpecialWins) {
  TokenizerFile file;
  const int32_t shorter = file.Add("<|x|>", 3);
  const int32_t longer = file.Add("<|x|><|y|>", 3);
  const auto tokenizer = *file.Load();
  EXPECT_THAT(Encoded(*tokenizer, "<|x|><|y|><|x|>", kSpecial), ElementsAre(longer, shorter));
}

TEST(Tokenizer, UserDefinedTokensAreAlwaysOneTokenAndText) {
  TokenizerFile file;
  const int32_t tool = file.Add("<tool>", 4);
  const auto tokenizer = *file.Load();
  EXPECT_THAT(Encoded(*tokenizer, "<tool>"), ElementsAre(tool));
  EXPECT_FALSE(tokenizer->IsSpecial(tool));
  EXPECT_EQ(tokenizer->Decode({tool}, /*skip_special=*/true), "<tool>");
}

TEST(Tokenizer, PartsMayShareWordsButNotSpecials) {
  const auto tokenizer = *TokenizerFile().Load();
  EXPECT_EQ(EncodedParts(*tokenizer, {{"th", true}, {"e", false}}), Encoded(*tokenizer, "the"));
  EXPECT_EQ(EncodedParts(*tokenizer, {{"<|im_end|>", false}}), Encoded(*tokenizer, "<|im_end|>"));
  EXPECT_EQ(EncodedParts(*tokenizer, {{"<|im_", true}, {"end|>", false}}), Encoded(*tokenizer, "<|im_end|>"));
  EXPECT_THAT(EncodedParts(*tokenizer, {{"<|im_end|>", true}}), ElementsAre(kSyntheticImEnd));
}

TEST(Tokenizer, BosAsTheFileSays) {
  TokenizerFile file;
  const size_t plain = Encoded(**file.Load(), "the").size();
  EXPECT_FALSE((*file.Load())->adds_bos());  // smollm's rule where the file is silent
  file.add_bos = true;
  const auto tokenizer = *file.Load();
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(Encoded(*tokenizer, "the").size(), plain + 1);
  EXPECT_EQ(Encoded(*tokenizer, "the").front(), kSyntheticImStart);
  EXPECT_EQ(Encoded(*tokenizer, "the", {.add_bos = false}).size(), plain);
  file.bos.reset();
  EXPECT_THAT(Refusal(file), HasSubstr("tokenizer.ggml.bos_token_id is missing"));

  TokenizerFile llama;
  llama.pre = "llama-bpe";  // begins with BOS where the file is silent
  EXPECT_TRUE((*llama.Load())->adds_bos());
  llama.add_bos = false;
  EXPECT_FALSE((*llama.Load())->adds_bos());
}

TEST(Tokenizer, LlamaThreeTakesWholeWordsFirst) {
  TokenizerFile file;
  file.add_bos = false;
  const int32_t whole = file.Add("xyzzy", 1);  // no merges lead to it
  EXPECT_GT(Encoded(**file.Load(), "xyzzy").size(), 1u);
  file.pre = "llama-bpe";
  EXPECT_THAT(Encoded(**file.Load(), "xyzzy"), ElementsAre(whole));
}

TEST(Tokenizer, EndsOfAnswers) {
  TokenizerFile file;
  const auto tokenizer = *file.Load();
  EXPECT_THAT(tokenizer->end_ids(), ElementsAre(kSyntheticEndOfText, kSyntheticImEnd));
  EXPECT_EQ(tokenizer->eos_id(), kSyntheticImEnd);
  EXPECT_EQ(tokenizer->bos_id(), kSyntheticImStart);
  file.eos.reset();
  EXPECT_THAT((*file.Load())->end_ids(), ElementsAre(kSyntheticEndOfText, kSyntheticImEnd));
  file.eos = 100;
  EXPECT_THAT((*file.Load())->end_ids(), ElementsAre(kSyntheticEndOfText, kSyntheticImEnd, 100));
  file.vocabulary.types.assign(400, 1);  // the names alone do not make them ends
  EXPECT_THAT((*file.Load())->end_ids(), ElementsAre(100));
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreNothing) {
  const auto tokenizer = *TokenizerFile().Load();
  for (int32_t id : {-1, 400, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
    EXPECT_FALSE(tokenizer->IsSpecial(id));
    EXPECT_EQ(tokenizer->Decode({id}, false), "");
  }
}

TEST(Tokenizer, RefusalsNameWhatIsWrong) {
  TokenizerFile file;
  file.model = "bert";
  EXPECT_THAT(Refusal(file), HasSubstr("tokenizer model 'bert' is not supported; 'gpt2', 'llama' and 't5' are"));
  file = {};
  file.pre = "wordpiece";
  EXPECT_THAT(Refusal(file), HasSubstr("tokenizer.ggml.pre: unknown pre-tokenizer 'wordpiece'; known are smollm"));
  file = {};
  file.vocabulary.types.pop_back();
  EXPECT_THAT(Refusal(file), HasSubstr("tokenizer.ggml.token_type has 399 entries for 400 tokens"));
  file = {};
  file.vocabulary.merges.push_back("q zzz");
  EXPECT_THAT(Refusal(file), HasSubstr("tokenizer.ggml.merges: merge "));
  file = {};
  file.eos = 400;
  EXPECT_THAT(Refusal(file), HasSubstr("tokenizer.ggml.eos_token_id is 400; the vocabulary ends at 399"));
  file = {};
  file.vocabulary = {};
  EXPECT_THAT(Refusal(file), HasSubstr("tokenizer.ggml.tokens has 0 tokens"));
}

TEST(Tokenizer, WithoutARuleItIsGpt2s) {
  TokenizerFile file;
  file.pre.reset();
  EXPECT_TRUE(file.Load().ok());
}

TEST(Tokenizer, ManyThreadsAtOnce) {
  const auto tokenizer = *TokenizerFile().Load();
  const std::string text = "the thing and 1234 other things, 你好 <|im_end|>";
  const std::vector<int32_t> expected = Encoded(*tokenizer, text, kSpecial);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) wrong[t] += Encoded(*tokenizer, text, kSpecial) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST(TextStream, DeltasNeverSplitACharacter) {
  const auto tokenizer = *TokenizerFile().Load();
  const std::string text = "a\xf0\x9f\x98\x80 caf\xc3\xa9 the 你";
  TextStream stream(tokenizer, /*skip_special=*/true);
  std::string streamed;
  for (int32_t id : Encoded(*tokenizer, text)) {
    const std::string delta = stream.Feed(id);
    EXPECT_EQ(ReplaceInvalidUtf8(delta), delta);
    streamed += delta;
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStream, AnswersCutInACharacterEndInAReplacement) {
  const auto tokenizer = *TokenizerFile().Load();
  const std::vector<int32_t> ids = Encoded(*tokenizer, "ab\xf0\x9f\x98\x80");
  for (size_t taken = 0; taken <= ids.size(); ++taken) {
    const std::vector<int32_t> begin(ids.begin(), ids.begin() + static_cast<int64_t>(taken));
    TextStream stream(tokenizer, /*skip_special=*/true);
    std::string streamed;
    for (int32_t id : begin) streamed += stream.Feed(id);
    EXPECT_EQ(streamed + stream.Finish(), tokenizer->Decode(begin, true));
  }
}

TEST(TextStream, SpecialsAreShownOrNot) {
  const auto tokenizer = *TokenizerFile().Load();
  TextStream shown(tokenizer, /*skip_special=*/false);
  EXPECT_EQ(shown.Feed(kSyntheticImEnd), "<|im_end|>");
  TextStream hidden(tokenizer, /*skip_special=*/true);
  EXPECT_EQ(hidden.Feed(kSyntheticImEnd), "");
  EXPECT_EQ(hidden.Feed(-7), "");
}

// Each kind of text is long work in another place.
TEST(Tokenizer, EndsWithItsCall) {
  const auto tokenizer = *TokenizerFile().Load();
  std::string words, specials;
  while (words.size() < (1 << 20)) words += "ab ";
  while (specials.size() < (1 << 20)) specials += "<|im_end|>";
  for (const std::string& text : {std::string(1 << 20, 'a'), words, specials, std::string(1 << 20, '\xff')}) {
    int asked = 0;
    const auto end_soon = [&asked] {
      return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("the client went away");
    };
    EXPECT_EQ(tokenizer->Encode(text, kSpecial, end_soon).status(), absl::CancelledError("the client went away"));
    EXPECT_EQ(asked, 3);
    const std::vector<TextPart> parts = {{"begun", false}, {text, true}, {"ended", false}};
    EXPECT_EQ(tokenizer->EncodeParts(parts, end_soon).status().code(), absl::StatusCode::kCancelled);
  }
}

TEST(Tokenizer, LeastTokensIsNeverMoreThanThereAre) {
  TokenizerFile file;
  size_t longest = 0;
  for (const std::string& token : file.vocabulary.tokens) longest = std::max(longest, token.size());
  const auto tokenizer = *file.Load();
  const std::string repeated(100000, 'a');
  EXPECT_EQ(tokenizer->LeastTokens({}), 0);
  EXPECT_EQ(tokenizer->LeastTokens({"a"}), 1);
  EXPECT_EQ(tokenizer->LeastTokens({"a", "b"}), 1) << "tokens may span texts";
  EXPECT_GE(tokenizer->LeastTokens({repeated}), static_cast<int64_t>(repeated.size() / longest));
  EXPECT_EQ(tokenizer->LeastTokens({repeated, repeated}), tokenizer->LeastTokens({repeated + repeated}));

  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (int word = random() % 50; word >= 0; --word) text += tokenizer->TokenBytes(random() % 400);
    EXPECT_LE(tokenizer->LeastTokens({text}), static_cast<int64_t>(tokenizer->Encode(text)->size())) << text;
  }
}

TEST(Tokenizer, LeastTokensLeavesOutWhatEncodeLeavesOut) {
  TokenizerFile file;
  for (std::string& token : file.vocabulary.tokens) {
    if (token == "Q") token = "<gone>";
  }
  const auto tokenizer = *file.Load();
  const std::string text(100000, 'Q');
  EXPECT_EQ(tokenizer->Encode(text)->size(), 0u);
  EXPECT_EQ(tokenizer->LeastTokens({text}), 0);
  // A token that takes the whole of a long run is counted too.
  TokenizerFile with_long;
  const int32_t id = with_long.Add(std::string(1000, '#'), /*user-defined*/ 4);
  EXPECT_EQ((*with_long.Load())->LeastTokens({std::string(1000, '#')}), 1);
  EXPECT_THAT(*(*with_long.Load())->Encode(std::string(1000, '#')), ElementsAre(id));
}

}  // namespace
}  // namespace runahead
