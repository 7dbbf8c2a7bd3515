// `runahead plan`: the commands about partitions. Each Add...Command adds one below `plan`.
#pragma once

#include "client/base/command.h"

namespace runahead {

void AddPlanSimulateCommand(CLI::App& plan, Command* chosen);
void AddPlanSearchCommand(CLI::App& plan, Command* chosen);
void AddPlanShowCommand(CLI::App& plan, Command* chosen);

}  // namespace runahead
