// Small vocabularies of every kind, by tokenizer.json and by GGUF's keys, against the `tokenizers` library
// (tests/golden/README.md).
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/tokenizer/text_stream.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/testing/golden_vocabulary.h"
#include "tests/testing/tokenizer_json.h"

namespace runahead {
namespace {

using nlohmann::json;

json ReadGolden(const std::string& name) {
  const std::string path = "tests/golden/data/tokenizers/" + name + ".json";
  std::ifstream in(path);
  EXPECT_TRUE(in) << path << " cannot be read; the test runs in the repository's root";
  return json::parse(in);
}

// FNV-1a of 32 bits.
uint32_t SumOf(std::string_view bytes) {
  uint32_t sum = 0x811c9dc5;
  for (const char byte : bytes) sum = (sum ^ static_cast<unsigned char>(byte)) * 0x01000193;
  return sum;
}

uint32_t SumOfIds(const std::vector<int32_t>& ids) {
  return SumOf({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)});
}

std::string GgufOf(const std::string& name) {
  GgufBuilder builder;
  AddGoldenVocabulary(name, builder);
  return builder.Build();
}

class VocabulariesGolden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    texts_ = GoldenTexts();
    golden_ = ReadGolden(GetParam());
    ASSERT_GE(texts_.size(), 2000u);
    ASSERT_EQ(golden_["sums"].size(), texts_.size());
  }

  void ExpectGolden(const absl::StatusOr<std::shared_ptr<const ModelFile>>& file, const std::set<size_t>& skips = {}) {
    ASSERT_TRUE(file.ok()) << file.status();
    const auto loaded = Tokenizer::FromModel(**file);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const std::shared_ptr<const Tokenizer>& tokenizer = *loaded;
    int wrong = 0, decoded = 0, compared = 0;
    for (size_t i = 0; i < texts_.size() && wrong < 20; ++i) {
      if (skips.contains(i)) continue;
      SCOPED_TRACE("text " + std::to_string(i) + ": " + json(texts_[i]).dump().substr(0, 200));
      const std::vector<int32_t> ids = Ids(*tokenizer, texts_[i], /*special=*/true);
      const std::vector<int32_t> plain = Ids(*tokenizer, texts_[i], /*special=*/false);
      const bool same = IsGolden("sums", i, SumOfIds(ids)) && IsGolden("plain_sums", i, SumOfIds(plain));
      EXPECT_TRUE(same) << "ids " << testing::PrintToString(ids) << ", without special tokens "
                        << testing::PrintToString(plain)
                        << (i < golden_["ids"].size() ? ", wanted " + golden_["ids"][i].dump() : std::string());
      const std::string text = tokenizer->Decode(ids, /*skip_special=*/false);
      EXPECT_TRUE(IsGolden("decoded_sums", i, SumOf(text))) << json(text).dump();
      EXPECT_EQ(Streamed(tokenizer, ids), text);
      EXPECT_LE(tokenizer->LeastTokens({texts_[i]}), static_cast<int64_t>(ids.size()));
      for (const int32_t id : plain) EXPECT_TRUE(!tokenizer->IsSpecial(id) || tokenizer->TokenBytes(id) == "<unk>");
      wrong += !same;
      compared += golden_["sums"][i] != 0;
      decoded += golden_["decoded_sums"][i] != 0;
    }
    EXPECT_GT(compared, 1900);
    EXPECT_GT(decoded, 1800);
    std::vector<int32_t> begin = golden_["begin"];
    EXPECT_EQ(tokenizer->adds_bos(), !begin.empty());
    if (!begin.empty()) {
      EXPECT_EQ(tokenizer->Encode("a")->front(), begin.front());
    }
  }

 private:
  // Where the sum is 0, ours is another on purpose (make_tokenizers.py).
  bool IsGolden(const char* sums, size_t text, uint32_t sum) const {
    const uint32_t golden = golden_[sums][text];
    return golden == 0 || golden == sum;
  }

  static std::vector<int32_t> Ids(const Tokenizer& tokenizer, const std::string& text, bool special) {
    const auto ids = tokenizer.Encode(text, {.parse_special = special, .add_bos = false});
    EXPECT_TRUE(ids.ok()) << ids.status();
    return *ids;
  }

  static std::string Streamed(const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<int32_t>& ids) {
    TextStream stream(tokenizer, /*skip_special=*/false);
    std::string text;
    for (const int32_t id : ids) text += stream.Feed(id);
    return text + stream.Finish();
  }

 protected:
  std::vector<std::string> texts_;
  json golden_;
};

std::string FamilyName(const testing::TestParamInfo<std::string>& family) {
  return family.param;
}

TEST_P(VocabulariesGolden, FromTokenizerJson) {
  ExpectGolden(ModelOfTokenizerJson(golden_["tokenizer"].dump()));
}

// transformers loads such files and puts blanks between the tokens; ours is what it makes with the decoder.
TEST_P(VocabulariesGolden, FromTokenizerJsonWithoutADecoder) {
  json tokenizer = golden_["tokenizer"];
  tokenizer["decoder"] = nullptr;
  ExpectGolden(ModelOfTokenizerJson(tokenizer.dump()));
}

INSTANTIATE_TEST_SUITE_P(Families, VocabulariesGolden, testing::ValuesIn(GoldenVocabularies()), FamilyName);

class VocabulariesGgufGolden : public VocabulariesGolden {};

TEST_P(VocabulariesGgufGolden, FromGguf) {
  ExpectGolden(ParseGguf(GgufOf(GetParam())), golden_["gguf_skips"].get<std::set<size_t>>());
}

INSTANTIATE_TEST_SUITE_P(Families, VocabulariesGgufGolden, testing::ValuesIn(GoldenGgufVocabularies()), FamilyName);

}  // namespace
}  // namespace runahead
