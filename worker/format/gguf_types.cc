#include "worker/format/gguf_types.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace runahead {
namespace {

// Types that Runahead does not read, by the file's number; empty where it does, or where a number was withdrawn or
// never given.
constexpr std::array<absl::string_view, 40> kOtherNames = {
    "", "",      "",      "", "",      "",      "",        "",       "",        "Q8_1",
    "", "",      "",      "", "",      "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
    "", "IQ3_S", "IQ2_S", "", "I8",    "I16",   "I32",     "I64",    "F64",     "IQ1_M",
    "", "",      "",      "", "TQ1_0", "TQ2_0", "",        "",       "",        "MXFP4"};

}  // namespace

std::optional<WeightType> WeightTypeFromGguf(uint32_t number) {
  for (const WeightBlock& block : kWeightBlocks) {
    if (static_cast<uint32_t>(block.type) == number) return block.type;
  }
  return std::nullopt;
}

std::string GgufTypeName(uint32_t number) {
  if (const std::optional<WeightType> known = WeightTypeFromGguf(number)) return BlockOf(*known).name;
  if (number < kOtherNames.size() && !kOtherNames[number].empty()) return std::string(kOtherNames[number]);
  return absl::StrCat("number ", number);
}

std::string SupportedGgufTypes() {
  return absl::StrJoin(kWeightBlocks, ", ",
                       [](std::string* out, const WeightBlock& block) { out->append(block.name); });
}

}  // namespace runahead
