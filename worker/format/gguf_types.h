// Tensor element types of GGUF files and the geometry of their blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace runahead {

// The element types that Runahead reads; the values are the file's own numbers.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kBF16 = 30,
};

// A row is a sequence of blocks of `elements` values in `bytes` bytes each; plain types have blocks of one element.
struct GgufBlock {
  int64_t elements;
  int64_t bytes;
};

// The geometry of `type`'s blocks.
GgufBlock BlockOf(GgufType type);

// The type with the file's number `number`, or nothing when Runahead does not read it.
std::optional<GgufType> GgufTypeFromNumber(uint32_t number);

// "Q4_1" and the like; also for types that Runahead does not read ("Q4_K"); "number 99" for numbers nobody has defined.
std::string GgufTypeName(uint32_t number);
std::string GgufTypeName(GgufType type);

// The readable types, for messages: "F32, F16, BF16, ...".
const char* SupportedGgufTypes();

// The bytes of a row of `elements` values, which must be a multiple of the block's elements.
int64_t RowBytes(GgufType type, int64_t elements);

}  // namespace runahead
