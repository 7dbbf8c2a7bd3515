#include "client/plan/plan_command.h"

#include <CLI/CLI.hpp>

namespace runahead {

void AddPlanCommand(CLI::App& app, Command* chosen) {
  CLI::App& plan = *app.add_subcommand("plan", "How prompts are cut among the workers of a chain.");
  plan.require_subcommand(1);
  AddPlanSimulateCommand(plan, chosen);
  AddPlanSearchCommand(plan, chosen);
  AddPlanShowCommand(plan, chosen);
  plan.footer("runahead plan COMMAND --help says what each takes.");
}

}  // namespace runahead
