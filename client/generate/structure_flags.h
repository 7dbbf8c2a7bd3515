// The flags of `generate` for the form that the answer is to have.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runahead/v1/inference.pb.h"

namespace CLI {
class App;
}

namespace runahead {

// What was typed. Nothing: the answer is any text.
struct StructureFlags {
  std::optional<std::string> json_schema, regex, grammar_file;
  std::vector<std::string> choices;
  bool json_object = false;

  // Keeps references into *this.
  void AddTo(CLI::App& app);
  // INVALID_ARGUMENT names the flag, also of two forms. Reads the files. What a form may be the service says.
  absl::Status FillIn(v1::GenerateRequest& request) const;
};

}  // namespace runahead
