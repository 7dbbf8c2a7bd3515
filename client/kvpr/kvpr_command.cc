#include "client/kvpr/kvpr_command.h"

#include <CLI/CLI.hpp>

namespace runahead {

void AddKvprCommand(CLI::App& app, Command* chosen) {
  CLI::App& kvpr = *app.add_subcommand("kvpr", "How decode over KV in host memory is split into lanes.");
  kvpr.require_subcommand(1);
  AddKvprSolveCommand(kvpr, chosen);
  kvpr.footer("runahead kvpr COMMAND --help says what each takes.");
}

}  // namespace runahead
