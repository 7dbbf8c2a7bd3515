// The form that an answer is to have, and what of it can be promised. Pure: nothing is compiled here.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace runahead {

enum class StructureKind {
  kJsonSchema,  // JSON that the JSON schema `text` accepts
  kJsonObject,  // any JSON object
  kRegex,       // text that the regular expression `text` matches as a whole
  kGrammar,     // text of the grammar `text`, whose first rule is root
  kChoice,      // one of `choices`
};

// As v1::Structure, unchecked.
struct StructureSpec {
  StructureKind kind = StructureKind::kJsonObject;
  std::string text = {};
  std::vector<std::string> choices = {};
  // Of kJsonSchema only: what stands before and behind the JSON, such as the tags of a tool call.
  std::string before = {};
  std::string behind = {};

  bool operator==(const StructureSpec& other) const {
    return kind == other.kind && text == other.text && choices == other.choices && before == other.before &&
           behind == other.behind;
  }
};

// What is looked at before anything is compiled. inference.proto and docs/structure.md say it.
inline constexpr size_t kMaxStructureBytes = size_t{64} << 10;
inline constexpr int kMaxStructureChoices = 1024;
inline constexpr int kMaxStructureDepth = 32;  // of JSON, and of groups
inline constexpr size_t kMaxStructureTagBytes = 256;

// What the compiler gets: texts that say no more than what it keeps.
struct CheckedStructure {
  bool is_json = false;  // `text` is a JSON schema; else a grammar
  std::string text;
  std::string before;  // a grammar; empty: nothing
  std::string behind;  // likewise
};

// INVALID_ARGUMENT names the field and the place in it, as `structure.json_schema: at /properties/a: the keyword
// "uniqueItems" is not supported`, and says what is allowed. Takes time and memory linear in the text, within the
// bounds above.
absl::StatusOr<CheckedStructure> PrepareStructure(const StructureSpec& spec);
absl::Status CheckStructure(const StructureSpec& spec);

// structure.json_schema and so on.
const char* FieldOf(StructureKind kind);

}  // namespace runahead
