// `runahead kvpr`: the commands about decode over KV in host memory. Each Add...Command adds one below `kvpr`.
#pragma once

#include "client/base/command.h"

namespace runahead {

void AddKvprSolveCommand(CLI::App& kvpr, Command* chosen);

}  // namespace runahead
