#include "server/grammar/schema_keywords.h"

#include <algorithm>
#include <utility>

namespace runahead {
namespace {

using K = SchemaKeyword;

constexpr std::pair<absl::string_view, SchemaKeyword> kKeywords[] = {
    {"title", K::kAnnotation},
    {"description", K::kAnnotation},
    {"default", K::kAnnotation},
    {"example", K::kAnnotation},
    {"examples", K::kAnnotation},
    {"deprecated", K::kAnnotation},
    {"readOnly", K::kAnnotation},
    {"writeOnly", K::kAnnotation},
    {"$comment", K::kAnnotation},
    {"$schema", K::kAnnotation},
    {"$defs", K::kDefinitions},
    {"definitions", K::kDefinitions},
    {"$ref", K::kForm},
    {"const", K::kForm},
    {"enum", K::kForm},
    {"anyOf", K::kForm},
    {"oneOf", K::kForm},
    {"allOf", K::kForm},
    {"type", K::kType},
    {"properties", K::kObject},
    {"required", K::kObject},
    {"additionalProperties", K::kObject},
    {"items", K::kArray},
    {"prefixItems", K::kArray},
    {"minItems", K::kArray},
    {"maxItems", K::kArray},
    {"pattern", K::kString},
    {"format", K::kString},
    {"minLength", K::kString},
    {"maxLength", K::kString},
    {"minimum", K::kNumber},
    {"maximum", K::kNumber},
    {"exclusiveMinimum", K::kNumber},
    {"exclusiveMaximum", K::kNumber},
    {"multipleOf", K::kNumber},
};

}  // namespace

std::optional<SchemaKeyword> FindSchemaKeyword(absl::string_view keyword) {
  const auto* const found = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                         [&](const auto& entry) { return entry.first == keyword; });
  if (found == std::end(kKeywords)) return std::nullopt;
  return found->second;
}

}  // namespace runahead
