// The command line over a ConfigSchema: --config FILE, then one flag for each key. The only code that knows both
// CLI11 and the schema; it is a library of its own (runahead::server_base_flags) because CLI11 is slow to compile.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/base/config.h"

namespace CLI {
class App;
}

namespace runahead {

// Flags of one (sub)command, for programs that have a CLI::App of their own. Lives as long as the app; the schema must
// outlive both.
class ConfigFlags {
 public:
  // Adds --config FILE and a flag for every key declared so far. No other option of `app` may have these names.
  ConfigFlags(CLI::App& app, ConfigSchema& schema);
  ~ConfigFlags();

  // After app.parse(): reads the file, then lays the flags over it, then asks for what is required.
  absl::Status Apply();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A whole main's command line. Nothing: go on with what was read. Otherwise the exit code to end with: 0 after --help
// or --version, 2 after a wrong usage or config, which has been explained on stderr. `about` is --help's first line.
std::optional<int> ParseCommandLine(int argc, const char* const* argv, const std::string& about, ConfigSchema& schema);

}  // namespace runahead
