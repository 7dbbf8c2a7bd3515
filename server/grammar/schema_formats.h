// The formats of texts that schemas may ask for.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace runahead {

struct SchemaFormat {
  std::string name;
  std::string expression = {};  // what texts of it match, as a schema's pattern; empty: xgrammar's own
};

// All that are supported; they live for ever.
const std::vector<SchemaFormat>& SchemaFormats();
// Null for a format that is not among them.
const SchemaFormat* FindSchemaFormat(absl::string_view name);

}  // namespace runahead
