// The flags of what a chat template reads beside the messages, which `generate` and `chat` share.
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

struct TemplateFlags {
  std::optional<std::string> tools_file;
  std::vector<std::string> variables;  // NAME=JSON each

  // Keeps references into *this.
  void AddTo(CLI::App& app);
  bool given() const { return tools_file || !variables.empty(); }
  // Reads --tools. INVALID_ARGUMENT names the flag and what is wrong with it.
  absl::Status FillIn(v1::ChatMessages& chat) const;
};

}  // namespace runahead
