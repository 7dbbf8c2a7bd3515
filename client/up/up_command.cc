#include <unistd.h>

#include <CLI/CLI.hpp>
#include <climits>
#include <csignal>
#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/base/command.h"
#include "client/up/cluster.h"
#include "client/up/up_options.h"
#include "server/base/config_flags.h"
#include "server/base/logging.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

struct UpState {
  UpOptions options;
  ConfigSchema schema;
  std::unique_ptr<ConfigFlags> flags;
  bool json = false;
};

// The folder of the running binary: router and worker stand beside it.
std::string OwnFolder() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  const std::string self(path, size > 0 ? static_cast<size_t>(size) : 0);
  return self.substr(0, self.rfind('/'));
}

// What each of the workers would say, and only where the log has it. What else is wrong with the model is theirs to
// say.
absl::Status CheckDType(const UpOptions& options) {
  if (options.dtype != "int8") return absl::OkStatus();
  const absl::StatusOr<std::shared_ptr<const ModelFile>> file = OpenModelFile(options.model);
  const absl::Status takes = file.ok() ? CheckTakesInt8(**file) : absl::OkStatus();
  return takes.ok() ? takes : absl::Status(takes.code(), absl::StrCat("--dtype: ", takes.message()));
}

int RunUp(UpState& state) {
  absl::Status status = state.flags->Apply();
  if (status.ok()) status = CheckUpOptions(state.options);
  for (const auto& [flag, file] : {std::pair("--model", state.options.model), {"--table", state.options.table}}) {
    if (status.ok() && !file.empty() && access(file.c_str(), R_OK) != 0) {
      status = absl::ErrnoToStatus(errno, absl::StrCat(flag, ": cannot read the file ", file));
    }
  }
  if (status.ok()) status = CheckDType(state.options);
  if (!status.ok()) {
    std::cerr << "runahead up: " << status.message() << "\nRun with --help for all options.\n";
    return kWrongUsage;
  }
  InitLogging("up", LogLevel::kInfo, state.options.log_format == "json" ? LogFormat::kJson : LogFormat::kText);
  std::signal(SIGPIPE, SIG_IGN);  // whoever read our endpoints may go; the cluster stays
  status = RunCluster(state.options, OwnFolder(), [&](const Endpoints& endpoints) {
    std::cout << (state.json ? EndpointsJson(endpoints) + "\n" : EndpointsText(endpoints)) << std::flush;
  });
  if (status.ok()) return kDone;
  std::cerr << "runahead up: " << status.message() << "\n";
  return kFailed;
}

}  // namespace

void AddUpCommand(CLI::App& app, Command* chosen) {
  CLI::App& up = *app.add_subcommand(
      "up",
      "Runs a cluster on this machine: a router, prefill-0.. and decode-0.., and a gateway that speaks HTTP, as processes on free\n"
      "loopback ports.\n"
      "Prints where they listen when all is ready; starts again what dies; stops all on Ctrl-C.");
  const auto state = std::make_shared<UpState>();
  DeclareUpOptions(state->schema, state->options);
  state->flags = std::make_unique<ConfigFlags>(up, state->schema);
  up.add_flag("--json", state->json, "One line on stdout when ready: {\"router\",\"http\",\"metrics\":{..},\"pids\":{..}}");
  up.callback([state, chosen] { *chosen = [state] { return RunUp(*state); }; });
}

}  // namespace runahead
