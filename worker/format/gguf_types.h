// The numbers and names that GGUF files give to element types. What is in a block: kernels/base/weight_type.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/base/weight_type.h"

namespace runahead {

// The type with the file's number `number`, or nothing when Runahead does not read it.
std::optional<WeightType> WeightTypeFromGguf(uint32_t number);

// "Q4_1" and the like; also for types that Runahead does not read ("IQ3_S"); "number 99" for numbers nobody has
// defined.
std::string GgufTypeName(uint32_t number);

// The readable types, for messages: "F32, F16, BF16, ...".
std::string SupportedGgufTypes();

}  // namespace runahead
