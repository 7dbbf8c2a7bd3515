#include "worker/format/gguf_types.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace runahead {
namespace {

// By the file's number; empty where a number was withdrawn or never given.
constexpr std::array<absl::string_view, 40> kNames = {
    "F32",    "F16",   "Q4_0",  "Q4_1",   "",      "",      "Q5_0",    "Q5_1",   "Q8_0",    "Q8_1",
    "Q2_K",   "Q3_K",  "Q4_K",  "Q5_K",   "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
    "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",     "I64",    "F64",     "IQ1_M",
    "BF16",   "",      "",      "",       "TQ1_0", "TQ2_0", "",        "",       "",        "MXFP4"};

}  // namespace

GgufBlock BlockOf(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return {1, 4};
    case GgufType::kF16:
    case GgufType::kBF16:
      return {1, 2};
    case GgufType::kQ4_0:
      return {32, 2 + 16};  // scale, nibbles
    case GgufType::kQ4_1:
      return {32, 2 + 2 + 16};  // scale, minimum, nibbles
    case GgufType::kQ5_0:
      return {32, 2 + 4 + 16};  // scale, fifth bits, nibbles
    case GgufType::kQ5_1:
      return {32, 2 + 2 + 4 + 16};  // scale, minimum, fifth bits, nibbles
    case GgufType::kQ8_0:
      return {32, 2 + 32};  // scale, signed bytes
  }
  return {1, 0};
}

std::optional<GgufType> GgufTypeFromNumber(uint32_t number) {
  switch (static_cast<GgufType>(number)) {
    case GgufType::kF32:
    case GgufType::kF16:
    case GgufType::kQ4_0:
    case GgufType::kQ4_1:
    case GgufType::kQ5_0:
    case GgufType::kQ5_1:
    case GgufType::kQ8_0:
    case GgufType::kBF16:
      return static_cast<GgufType>(number);
  }
  return std::nullopt;
}

std::string GgufTypeName(uint32_t number) {
  if (number < kNames.size() && !kNames[number].empty()) return std::string(kNames[number]);
  return absl::StrCat("number ", number);
}

std::string GgufTypeName(GgufType type) {
  return GgufTypeName(static_cast<uint32_t>(type));
}

const char* SupportedGgufTypes() {
  return "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0";
}

int64_t RowBytes(GgufType type, int64_t elements) {
  const GgufBlock block = BlockOf(type);
  return elements / block.elements * block.bytes;
}

}  // namespace runahead
