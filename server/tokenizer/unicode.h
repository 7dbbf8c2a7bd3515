// What tokenizers ask of Unicode beyond UTF-8's form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/tokenizer/keep_going.h"

namespace runahead {

// The character that `text` begins with, which is a whole one.
uint32_t FirstCharacter(std::string_view text);

// Appends `character` in UTF-8.
void AppendCharacter(uint32_t character, std::string& text);

// Unicode's White_Space.
bool IsWhiteSpace(uint32_t character);

// A letter, mark, digit or connector: what words are made of.
bool IsWordCharacter(uint32_t character);

// The bytes of white space that `text`, any bytes, begins or ends with.
size_t WhiteSpaceBegin(std::string_view text);
size_t WhiteSpaceEnd(std::string_view text);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// `text`, which is valid UTF-8, in a normal form. Close to linear in the text, however many marks stand in a row.
// Fails only where `steps` do.
absl::Status AppendNormalized(std::string_view text, NormalForm form, Steps& steps, std::string& out);

// A character of a normalised text has at most 1 / this of the bytes that it came from.
inline constexpr int64_t kNormalFormShrinks = 4;

}  // namespace runahead
