// Files that are truncated, damaged or made to harm: an error that names the place, never a crash or a huge allocation.
// The image lies in a heap block of exactly its size, so that the address sanitizer sees every read beyond it.
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/quantize.h"
#include "worker/format/dequantize.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr uint32_t kArray = 9;
constexpr uint32_t kString = 8;
constexpr uint64_t kHuge = uint64_t{1} << 62;

absl::StatusOr<std::shared_ptr<const ModelFile>> ParseBytes(absl::string_view bytes) {
  std::shared_ptr<std::byte[]> copy(new std::byte[bytes.size()]);
  std::memcpy(copy.get(), bytes.data(), bytes.size());
  return ParseGguf("test.gguf", {copy.get(), bytes.size()}, copy);
}

std::string Refusal(const GgufBuilder& builder) {
  const auto file = ParseBytes(builder.Build());
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(file.status().message()), StartsWith("test.gguf: "));
  return std::string(file.status().message());
}

GgufBuilder ShortFile() {
  GgufBuilder builder;
  builder.AddString("general.architecture", "llama");
  builder.AddUint32("count", 7);
  builder.AddFloat("epsilon", 1e-5f);
  builder.AddBool("yes", true);
  builder.AddStrings("words", {"a", "", "bcd"});
  builder.AddInts("numbers", {1, -2, 3});
  builder.AddTensor("norm", WeightType::kF32, {3}, Quantize(WeightType::kF32, std::vector<float>{1, 2, 3}));
  builder.AddTensor("matrix", WeightType::kQ4_1, {32, 2}, Quantize(WeightType::kQ4_1, std::vector<float>(64, 0.5f)));
  return builder;
}

// Uses all that the file offers, whatever it is.
void TouchEverything(const ModelFile& file) {
  for (const char* key : {"general.architecture", "count", "epsilon", "yes", "words", "numbers"}) {
    (void)file.GetString(key).ok();
    (void)file.GetUint(key).ok();
    (void)file.GetFloat(key).ok();
    (void)file.GetBool(key).ok();
    (void)file.GetStrings(key).ok();
    (void)file.GetInts(key).ok();
  }
  for (const FileTensor& tensor : file.tensors()) {
    std::vector<float> row(static_cast<size_t>(tensor.columns()));
    const int64_t row_bytes = static_cast<int64_t>(WeightRowBytes(tensor.type, tensor.columns()));
    ASSERT_EQ(static_cast<int64_t>(tensor.data.size()), row_bytes * tensor.rows());
    for (int64_t r = 0; r < tensor.rows(); ++r) {
      DequantizeRow(tensor.type, tensor.data.data() + r * row_bytes, tensor.columns(), row.data());
    }
  }
}

TEST(GgufHostile, EveryTruncationIsAnError) {
  const std::string whole = ShortFile().Build();
  ASSERT_TRUE(ParseBytes(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto file = ParseBytes(absl::string_view(whole).substr(0, size));
    ASSERT_FALSE(file.ok()) << size;
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(file.status().message()), StartsWith("test.gguf: "));
  }
}

TEST(GgufHostile, EveryBitFlipIsSurvived) {
  std::string bytes = ShortFile().Build();
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] = static_cast<char>(bytes[i] ^ 1 << bit);
      if (const auto file = ParseBytes(bytes); file.ok()) TouchEverything(**file);
      bytes[i] = static_cast<char>(bytes[i] ^ 1 << bit);
    }
  }
}

TEST(GgufHostile, RandomMutationsAreSurvived) {
  const std::string whole = ShortFile().Build();
  std::mt19937_64 random(20240501);
  const uint64_t interesting[] = {0,     1,         31,           0xff,       0xffff,     0x7fffffff,
                                  kHuge, kHuge / 2, ~uint64_t{0}, 0x80000000, 0xffffffff, uint64_t{1} << 63};
  int parsed = 0;
  for (int round = 0; round < 50000; ++round) {
    std::string bytes = whole;
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % bytes.size();
      const uint64_t value = random() % 2 == 0 ? random() : interesting[random() % std::size(interesting)];
      const size_t width = std::min<size_t>(size_t{1} << random() % 4, bytes.size() - at);
      std::memcpy(bytes.data() + at, &value, width);
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    if (const auto file = ParseBytes(bytes); file.ok()) {
      ++parsed;
      TouchEverything(**file);
    }
  }
  EXPECT_GT(parsed, 1000);  // mutations of values and weights still parse: both ways were taken
}

TEST(GgufHostile, WrongMagicVersionAndByteOrder) {
  EXPECT_THAT(std::string(ParseBytes("PK\x03\x04 this is a zip").status().message()), HasSubstr("not a GGUF file"));
  GgufBuilder builder = ShortFile();
  builder.header().version = 1;
  EXPECT_THAT(Refusal(builder), HasSubstr("GGUF version 1 cannot be read; versions 2 and 3 can"));
  builder.header().version = 4;
  EXPECT_THAT(Refusal(builder), HasSubstr("GGUF version 4"));
  builder.header().version = 3u << 24;
  EXPECT_THAT(Refusal(builder), HasSubstr("big-endian"));
}

TEST(GgufHostile, NamesInMessagesAreEscaped) {
  GgufBuilder builder;
  builder.AddString("a\x1b[31m\n", "x");
  const auto file = ParseBytes(builder.Build());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->GetUint("a\x1b[31m\n").status().message(),
            "test.gguf: metadata key 'a\\x1b[31m\\n' is a string; it must be an integer");
  EXPECT_EQ((*file)->GetUint("\xff.x").status().message(), "test.gguf: metadata key '\\xff.x' is missing");
  EXPECT_EQ((*file)->FindTensor("\r").status().message(), "test.gguf: tensor '\\r' is missing");
}

TEST(GgufHostile, HugeCountsInTheHeader) {
  GgufBuilder keys = ShortFile();
  keys.header().extra_keys = int64_t{1} << 60;
  EXPECT_THAT(Refusal(keys), HasSubstr("metadata keys, more than the file can hold"));
  GgufBuilder tensors = ShortFile();
  tensors.header().extra_tensors = -3;  // 2^64 - 1
  EXPECT_THAT(Refusal(tensors), HasSubstr("18446744073709551615 tensors, more than the file can hold"));
  GgufBuilder one_more = ShortFile();
  one_more.header().extra_keys = 1;  // what follows is then read as a key, and is none
  Refusal(one_more);
}

TEST(GgufHostile, HugeStringsAndArrays) {
  GgufBuilder text;
  text.AddRaw("general.name", kString, GgufBuilder::Number(kHuge));
  EXPECT_THAT(Refusal(text), HasSubstr("ends inside metadata key 'general.name'"));
  for (uint32_t element : {0u, 4u, 8u, 10u}) {
    GgufBuilder array;
    array.AddRaw("tokens", kArray, GgufBuilder::Number(element) + GgufBuilder::Number(kHuge));
    EXPECT_THAT(Refusal(array), AllOf(HasSubstr("metadata key 'tokens'"), HasSubstr("more than the file can hold")));
  }
  GgufBuilder inner;  // the count fits, an element's length does not
  inner.AddRaw("tokens", kArray,
               GgufBuilder::Number(kString) + GgufBuilder::Number(uint64_t{2}) + GgufBuilder::Text("a") +
                   GgufBuilder::Number(~uint64_t{0}));
  EXPECT_THAT(Refusal(inner), HasSubstr("ends inside metadata key 'tokens'"));
}

TEST(GgufHostile, OddMetadata) {
  GgufBuilder nested;
  nested.AddRaw("tokens", kArray, GgufBuilder::Number(kArray) + GgufBuilder::Number(uint64_t{1}));
  EXPECT_THAT(Refusal(nested), HasSubstr("'tokens' is an array of arrays"));
  GgufBuilder unknown;
  unknown.AddRaw("key", 13, "");
  EXPECT_THAT(Refusal(unknown), HasSubstr("'key' has the unknown type 13"));
  GgufBuilder element;
  element.AddRaw("key", kArray, GgufBuilder::Number(uint32_t{77}) + GgufBuilder::Number(uint64_t{0}));
  EXPECT_THAT(Refusal(element), HasSubstr("elements of the unknown type 77"));
  GgufBuilder boolean;
  boolean.AddRaw("flag", 7, "\x02");
  EXPECT_THAT(Refusal(boolean), HasSubstr("'flag' is a boolean that is neither 0 nor 1"));
  GgufBuilder twice;
  twice.AddUint32("count", 1);
  twice.AddUint32("count", 2);
  EXPECT_THAT(Refusal(twice), HasSubstr("'count' appears twice"));
  GgufBuilder nameless;
  nameless.AddUint32("", 1);
  EXPECT_THAT(Refusal(nameless), HasSubstr("name of metadata key 1 has 0 bytes"));
}

TEST(GgufHostile, NamesAreEscapedAndCutInMessages) {
  GgufBuilder builder;
  builder.AddRaw("\x1b[2J" + std::string(500, 'x'), 13, "");
  EXPECT_THAT(Refusal(builder), AllOf(HasSubstr("'\\x1b[2J"), HasSubstr("x...'"), testing::SizeIs(testing::Lt(200u))));
}

TEST(GgufHostile, AlignmentMustBeAPowerOfTwo) {
  for (uint32_t alignment : {0u, 3u, 48u, 1u << 31}) {
    GgufBuilder builder = ShortFile();
    builder.AddUint32("general.alignment", alignment);
    EXPECT_THAT(Refusal(builder), HasSubstr("'general.alignment' is " + std::to_string(alignment)));
  }
  GgufBuilder text = ShortFile();
  text.AddString("general.alignment", "32");
  EXPECT_THAT(Refusal(text), HasSubstr("'general.alignment' is a string; it must be an integer"));
  GgufBuilder wide(4096);
  wide.AddUint32("general.alignment", 4096);
  wide.AddTensor("norm", WeightType::kF32, {1}, std::string(4, '\0'));
  EXPECT_TRUE(ParseBytes(wide.Build()).ok());
}

TEST(GgufHostile, ImpossibleDimensions) {
  const auto refusal = [](const std::vector<uint64_t>& dims, WeightType type = WeightType::kF32) {
    GgufBuilder builder;
    builder.AddTensorEntry("weights", static_cast<uint32_t>(type), dims, 0);
    return Refusal(builder);
  };
  EXPECT_THAT(refusal({}), HasSubstr("tensor 'weights' has 0 dimensions"));
  EXPECT_THAT(refusal({1, 1, 1, 1, 1}), HasSubstr("has 5 dimensions"));
  EXPECT_THAT(refusal({0}), HasSubstr("impossible dimension 0"));
  EXPECT_THAT(refusal({4, 0}), HasSubstr("impossible dimension 0"));
  EXPECT_THAT(refusal({uint64_t{1} << 32, uint64_t{1} << 32}), HasSubstr("impossible dimension 4294967296"));
  EXPECT_THAT(refusal({~uint64_t{0}}), HasSubstr("impossible dimension 18446744073709551615"));
  EXPECT_THAT(refusal({uint64_t{1} << 40}), HasSubstr("truncated or damaged"));
  EXPECT_THAT(refusal({33, 2}, WeightType::kQ4_0), HasSubstr("rows of 33 elements; type Q4_0 needs a multiple of 32"));
}

TEST(GgufHostile, ImpossibleOffsets) {
  const auto refusal = [](uint64_t offset) {
    GgufBuilder builder;
    builder.AddTensor("real", WeightType::kF32, {16}, std::string(64, '\0'));
    builder.AddTensorEntry("weights", 0, {8}, offset);
    return Refusal(builder);
  };
  EXPECT_THAT(refusal(33), HasSubstr("'weights' begins at offset 33, which is no multiple of the alignment 32"));
  EXPECT_THAT(refusal(64), HasSubstr("takes 32 bytes at offset 64 of the data section, which has 64"));
  EXPECT_THAT(refusal(~uint64_t{0} - 31), HasSubstr("truncated or damaged"));
  EXPECT_THAT(refusal(32), AllOf(HasSubstr("'real'"), HasSubstr("'weights'"), HasSubstr("overlap")));
}

TEST(GgufHostile, DuplicateAndNamelessTensors) {
  GgufBuilder twice = ShortFile();
  twice.AddTensor("norm", WeightType::kF32, {1}, std::string(4, '\0'));
  EXPECT_THAT(Refusal(twice), HasSubstr("tensor 'norm' appears twice"));
  GgufBuilder nameless;
  nameless.AddTensor("", WeightType::kF32, {1}, std::string(4, '\0'));
  EXPECT_THAT(Refusal(nameless), HasSubstr("name of tensor 1 has 0 bytes"));
  GgufBuilder wordy;
  wordy.AddTensor(std::string(256, 'n'), WeightType::kF32, {1}, std::string(4, '\0'));
  EXPECT_THAT(Refusal(wordy), HasSubstr("has 256 bytes"));
}

TEST(GgufHostile, SuperblocksWantRowsOfTheirMultiples) {
  for (const int64_t columns : {128, 576, 640}) {
    GgufBuilder file;
    file.AddTensorEntry("blk.0.attn_q.weight", 12, {static_cast<uint64_t>(columns), 1}, 0);
    EXPECT_THAT(Refusal(file), AllOf(HasSubstr("'blk.0.attn_q.weight' has rows of " + std::to_string(columns)),
                                     HasSubstr("Q4_K"), HasSubstr("256")));
  }
}

TEST(GgufHostile, UnreadableTensorTypesAreNamed) {
  GgufBuilder other;
  other.AddTensorEntry("blk.0.attn_q.weight", 21, {256}, 0);
  EXPECT_THAT(Refusal(other), AllOf(HasSubstr("tensor 'blk.0.attn_q.weight' has the type IQ3_S, which cannot be read"),
                                    HasSubstr("F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, Q2_K, Q3_K, Q4_K, "
                                              "Q5_K, Q6_K, IQ4_XS")));
  for (uint32_t type : {4u, 5u, 31u, 40u, ~0u}) {
    GgufBuilder unknown;
    unknown.AddTensorEntry("weights", type, {256}, 0);
    EXPECT_THAT(Refusal(unknown), HasSubstr("has the type number "));
  }
}

// A label, a message or a page that has such a byte cannot be read as a whole.
TEST(GgufHostile, TextsThatAreNoneAreKeptAsOnesThatAre) {
  GgufBuilder builder;
  builder.AddString("general.name", "Mod\xe8le \"A\\B\" \x1b[31m\xe2\x80\xae\n");
  builder.AddString("general.architecture", "ll\xff");
  builder.AddString("general.license", "\u00a9 ok");
  builder.AddString("ll.rope.scaling.type", std::string("a\0b", 3));
  builder.AddString("tokenizer.ggml.pre", "\xff");
  const auto file = ParseBytes(builder.Build());
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string name = R"(Mod\xe8le "A\B" \x1b[31m\xe2\x80\xae\n)";
  EXPECT_EQ(*(*file)->GetString("general.name"), name);
  EXPECT_EQ(*(*file)->GetString("general.architecture"), "ll\\xff");
  EXPECT_EQ(*(*file)->GetString("general.license"), "\u00a9 ok");
  EXPECT_EQ(*(*file)->GetString("ll.rope.scaling.type"), "a\\x00b");
  EXPECT_EQ(*(*file)->GetString("tokenizer.ggml.pre"), "\xff") << "whose reader says what is wrong";
  EXPECT_THAT(
      (*file)->remarks(),
      testing::ElementsAre("test.gguf: metadata key 'general.name' is no name that can be shown everywhere; the "
                           "model is called " +
                           name));
}

TEST(GgufHostile, ANameIsNoLongerThanALabelShouldBe) {
  GgufBuilder builder;
  builder.AddString("general.name", std::string(1 << 20, 'x'));
  EXPECT_EQ(*(*ParseBytes(builder.Build()))->GetString("general.name"), std::string(200, 'x') + "...");
}

TEST(GgufHostile, ATensorWhoseNameIsNoTextIsRefused) {
  GgufBuilder builder;
  builder.AddTensor("\xff", WeightType::kF32, {1}, std::string(4, '\0'));
  EXPECT_EQ(Refusal(builder), "test.gguf: tensor '\\xff' has a name that is no text; no model has such");
}

}  // namespace
}  // namespace runahead
