// The keywords of JSON schemas that are known here.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"

namespace runahead {

enum class SchemaKeyword {
  kAnnotation,   // says nothing about what is accepted
  kDefinitions,  // schemas to refer to
  kForm,         // $ref, const, enum, anyOf, oneOf, allOf: stands alone, but for a type beside const and enum
  kType,
  kObject,  // of this type of value; others are not touched by it
  kArray,
  kString,
  kNumber,
};

// None for a keyword that is not supported.
std::optional<SchemaKeyword> FindSchemaKeyword(absl::string_view keyword);

}  // namespace runahead
