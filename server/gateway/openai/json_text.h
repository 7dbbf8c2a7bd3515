// Values as JSON text: answers are put together of them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace runahead {

// In quotes. U+FFFD stands for what is no UTF-8.
std::string JsonString(absl::string_view text);

// The shortest text that is read as the same value. What is no number of JSON's is null.
std::string JsonNumber(double value);
std::string JsonNumber(float value);

// Adds a value to what stands between the brackets of an array or an object.
void AddToJson(std::string& inside, absl::string_view value);

}  // namespace runahead
