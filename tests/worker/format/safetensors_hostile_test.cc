// Files that are truncated, damaged or made to harm: an error that names the place, never a crash or a huge allocation.
// The image lies in a heap block of exactly its size, so that the address sanitizer sees every read beyond it.
#include <sys/resource.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/folder_builder.h"
#include "worker/format/safetensors.h"

namespace runahead {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

// Also uses all that the file offers.
absl::Status ReadHostile(const std::string& image) {
  const std::unique_ptr<std::byte[]> copy(new std::byte[image.size()]);
  std::memcpy(copy.get(), image.data(), image.size());
  const auto file = ReadSafetensors("m.safetensors", {copy.get(), image.size()});
  if (!file.ok()) return file.status();
  unsigned sum = 0;
  for (const SafetensorsEntry& entry : file->entries) {
    const auto tensor = ToFileTensor(entry, "m.safetensors", "x");
    if (!tensor.ok()) continue;
    EXPECT_EQ(tensor->data.size(), WeightRowBytes(tensor->type, tensor->columns()) * tensor->rows());
    for (const std::byte byte : tensor->data) sum += static_cast<unsigned>(byte);
  }
  return sum == ~0u ? absl::UnknownError("") : absl::OkStatus();
}

std::string HostileRefusal(const std::string& image) {
  const absl::Status status = ReadHostile(image);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("m.safetensors: "));
  return std::string(status.message());
}

constexpr char kHeader[] = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                           R"("b":{"dtype":"F16","shape":[4],"data_offsets":[24,32]}})";

// The header with `from` in place of `to`.
std::string Changed(const std::string& from, const std::string& to) {
  const std::string changed = absl::StrReplaceAll(kHeader, {{from, to}});
  EXPECT_NE(changed, kHeader) << from;
  return SafetensorsImage(changed, std::string(32, '\1'));
}

TEST(SafetensorsHostile, EveryTruncationIsAnError) {
  const std::string whole = SafetensorsImage(kHeader, std::string(32, '\1'));
  ASSERT_TRUE(ReadHostile(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(HostileRefusal(whole.substr(0, size)), HasSubstr("truncated or damaged")) << size;
  }
  // The length goes with it: what is left is no JSON, or lacks a tensor's bytes.
  for (size_t size = 0; size < sizeof(kHeader) - 1; ++size) {
    HostileRefusal(SafetensorsImage(std::string(kHeader).substr(0, size), std::string(32, '\1')));
  }
}

TEST(SafetensorsHostile, EveryBitFlipIsSurvived) {
  std::string bytes = SafetensorsImage(kHeader, std::string(32, '\1'));
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] = static_cast<char>(bytes[i] ^ 1 << bit);
      (void)ReadHostile(bytes).ok();
      bytes[i] = static_cast<char>(bytes[i] ^ 1 << bit);
    }
  }
}

TEST(SafetensorsHostile, RandomNumbersAreSurvived) {
  std::mt19937_64 random(20240502);
  const std::string interesting[] = {"0",
                                     "1",
                                     "8",
                                     "24",
                                     "32",
                                     "33",
                                     "4294967296",
                                     "-1",
                                     "1.5",
                                     "1e3",
                                     "[]",
                                     "9223372036854775807",
                                     "1152921504606846975",
                                     "null",
                                     "\"F64\"",
                                     "{}",
                                     "18446744073709551615",
                                     "1e400"};
  const std::string places[] = {"2,", "3]", "0,24", "24]", "4]", "24,", "32]", "\"F32\"", "\"F16\"", "[2,3]"};
  int read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string header = kHeader;
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      const std::string& place = places[random() % std::size(places)];
      const size_t at = header.find(place);
      if (at == std::string::npos) continue;
      const bool ends = place.back() == ']' || place.back() == ',';
      const size_t length = place[0] == '[' || !ends ? place.size() : place.size() - 1;
      header.replace(at, length, interesting[random() % std::size(interesting)]);
    }
    if (ReadHostile(SafetensorsImage(header, std::string(32, '\1'))).ok()) ++read;
  }
  EXPECT_GT(read, 50);  // both ways were taken
}

TEST(SafetensorsHostile, LengthsOfTheHeader) {
  std::string image = SafetensorsImage(kHeader, std::string(32, '\1'));
  const auto with_length = [&](uint64_t length) {
    std::memcpy(image.data(), &length, sizeof(length));
    return HostileRefusal(image);
  };
  EXPECT_THAT(with_length(100'000'001), HasSubstr("said to have 100000001 bytes; at most 100000000"));
  EXPECT_THAT(with_length(~uint64_t{0}), HasSubstr("18446744073709551615 bytes"));
  EXPECT_THAT(with_length(~uint64_t{0} - 7), HasSubstr("at most 100000000"));
  EXPECT_THAT(with_length(image.size() - 7), HasSubstr("ends inside the header, which has"));
  EXPECT_THAT(with_length(image.size() - 8), HasSubstr("the header is not JSON at byte"));
  EXPECT_THAT(with_length(0), HasSubstr("no JSON object"));
}

TEST(SafetensorsHostile, HeadersThatAreNoJsonObject) {
  for (const char* header : {"[]", " {}", "1", "null", "\"a\"", "\xef\xbb\xbf{}"}) {
    EXPECT_THAT(HostileRefusal(SafetensorsImage(header, "")), HasSubstr("the header is no JSON object")) << header;
  }
  for (const char* header : {"{", "{}}", "{\"a\"}", "{'a':1}", "{\"a\":01}", "{\"\xff\":1}", "{} x", "{\"a\":NaN}"}) {
    EXPECT_THAT(HostileRefusal(SafetensorsImage(header, "")), HasSubstr("the header is not JSON at byte")) << header;
  }
}

TEST(SafetensorsHostile, EntriesThatAreNone) {
  EXPECT_THAT(HostileRefusal(SafetensorsImage(R"({"a":1})", "")), HasSubstr("tensor 'a' has no dtype that is a text"));
  EXPECT_THAT(HostileRefusal(SafetensorsImage(R"({"a":[]})", "")), HasSubstr("tensor 'a' has no dtype"));
  EXPECT_THAT(HostileRefusal(Changed("\"F32\"", "7")), HasSubstr("tensor 'a' has no dtype"));
  EXPECT_THAT(HostileRefusal(Changed("\"F32\"", "\"F16\"")),
              HasSubstr("tensor 'a' is 'F16' [2, 3], which takes 12 bytes, but its offsets are of 24"));
  EXPECT_THAT(HostileRefusal(Changed("[2,3]", "6")), HasSubstr("tensor 'a' has no shape that is an array"));
  EXPECT_THAT(HostileRefusal(Changed("\"shape\":[2,3],", "")), HasSubstr("tensor 'a' has no shape"));
  EXPECT_THAT(HostileRefusal(Changed("[0,24]", "[0]")), HasSubstr("tensor 'a' has no data_offsets of two numbers"));
  EXPECT_THAT(HostileRefusal(Changed("[0,24]", "[0,24,24]")), HasSubstr("no data_offsets of two"));
  EXPECT_THAT(HostileRefusal(Changed("\"a\"", "\"\"")), HasSubstr("has a name of 0 bytes"));
  EXPECT_THAT(HostileRefusal(Changed("\"a\"", absl::StrCat("\"", std::string(256, 'n'), "\""))),
              AllOf(HasSubstr("has a name of 256 bytes"), SizeIs(testing::Lt(200u))));
  EXPECT_THAT(HostileRefusal(Changed("\"b\"", "\"a\"")), HasSubstr("has 'a' twice"));
  EXPECT_THAT(HostileRefusal(Changed("\"dtype\":\"F32\"", "\"dtype\":\"F32\",\"dtype\":\"F32\"")),
              HasSubstr("has 'dtype' twice"));
}

TEST(SafetensorsHostile, ImpossibleShapes) {
  for (const char* dim : {"-1", "1.5", "1e1", "\"2\"", "null"}) {
    EXPECT_THAT(HostileRefusal(Changed("[2,3]", absl::StrCat("[", dim, ",3]"))),
                HasSubstr("tensor 'a' has a dimension that is no whole number"))
        << dim;
  }
  EXPECT_THAT(HostileRefusal(Changed("[2,3]", "[[2],3]")), HasSubstr("deep"));
  EXPECT_THAT(HostileRefusal(Changed("[2,3]", "[4294967296,4294967296]")),
              HasSubstr("impossible dimension 4294967296"));
  EXPECT_THAT(HostileRefusal(Changed("[2,3]", "[9223372036854775807]")), HasSubstr("impossible dimension"));
  EXPECT_THAT(HostileRefusal(Changed("[2,3]", "[18446744073709551615]")), HasSubstr("no whole number"));
  EXPECT_THAT(HostileRefusal(Changed("[2,3]", "[0,4294967296,4294967296]")), HasSubstr("impossible dimension"));
  EXPECT_THAT(HostileRefusal(Changed("[2,3]", "[2,4]")), HasSubstr("takes 32 bytes, but its offsets are of 24"));
  EXPECT_THAT(HostileRefusal(Changed("[2,3]", "[2,0]")), HasSubstr("takes 0 bytes, but its offsets are of 24"));
  EXPECT_THAT(HostileRefusal(Changed("[2,3]", "[1,1,1,1,1,1,1,2,3]")), HasSubstr("has 9 dimensions"));
}

TEST(SafetensorsHostile, ImpossibleOffsets) {
  for (const char* offsets : {"[-1,24]", "[0.0,24]", "[0,2.4e1]", "[24,0]", "[0,null]", "[0,18446744073709551615]"}) {
    EXPECT_THAT(HostileRefusal(Changed("[0,24]", offsets)),
                HasSubstr("tensor 'a' has data_offsets that are no rising"));
  }
  EXPECT_THAT(HostileRefusal(Changed("[24,32]", "[25,33]")),
              HasSubstr("tensor 'b' ends at offset 33 of the data, which has 32"));
  EXPECT_THAT(HostileRefusal(Changed("[0,24]", "[9223372036854775783,9223372036854775807]")),
              HasSubstr("truncated or damaged"));
  EXPECT_THAT(HostileRefusal(Changed("[24,32]", "[23,31]")), HasSubstr("tensors 'a' and 'b' overlap"));
  EXPECT_THAT(HostileRefusal(Changed("[24,32]", "[0,8]")), HasSubstr("overlap"));
  EXPECT_THAT(HostileRefusal(SafetensorsImage(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xx")),
              HasSubstr("bytes before tensor 'a' are of no tensor"));
  EXPECT_THAT(HostileRefusal(SafetensorsImage(kHeader, std::string(33, '\1'))),
              HasSubstr("the last 1 bytes are of no tensor"));
}

TEST(SafetensorsHostile, DtypesThatNobodyKnowsAreHeldToTheirOffsetsOnly) {
  EXPECT_TRUE(ReadHostile(Changed("\"F32\"", "\"F4_NEW\"")).ok());
  EXPECT_THAT(HostileRefusal(Changed("\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]",
                                     "\"dtype\":\"F4_NEW\",\"shape\":[2,3],\"data_offsets\":[0,25]")),
              HasSubstr("overlap"));
}

// Most memory that this process has had, in bytes.
int64_t PeakBytes() {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// The refusal of a header that has nothing behind it, read without a copy of ours.
std::string RefusalOfHeader(const std::string& header) {
  // Seen: 6.4, of a text that does not end; under the address sanitizer, which keeps what was freed, 12.6.
  constexpr int64_t kTimes = 16;
  const std::string image = SafetensorsImage(header, "");
  const int64_t before = PeakBytes();
  const absl::Status status =
      ReadSafetensors("m.safetensors", {reinterpret_cast<const std::byte*>(image.data()), image.size()}).status();
  EXPECT_LT(PeakBytes() - before, kTimes * static_cast<int64_t>(image.size()));
  return std::string(status.message());
}

TEST(SafetensorsHostile, DeepAndLongHeadersTakeBoundedMemory) {
  constexpr size_t kBytes = 20'000'000;
  EXPECT_THAT(RefusalOfHeader(absl::StrCat("{\"a\":", std::string(kBytes, '['))),
              HasSubstr("the header is nested deeper than 3"));
  std::string many = "{\"a\":[";
  while (many.size() < kBytes) many += "0,";
  EXPECT_THAT(RefusalOfHeader(many + "0]}"), HasSubstr("has more than 1310720 values"));
  std::string tensors = "{";
  for (int i = 0; i < 200'000; ++i) {
    absl::StrAppend(&tensors, i == 0 ? "" : ",", "\"", i, R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})");
  }
  EXPECT_THAT(RefusalOfHeader(tensors + "}"), HasSubstr("has more than 1310720 values"));
  EXPECT_THAT(RefusalOfHeader(absl::StrCat("{\"", std::string(kBytes, 'n'))),
              AllOf(HasSubstr("is not JSON"), SizeIs(testing::Lt(200u))));
}

}  // namespace
}  // namespace runahead
