// How our programs explain themselves on the command line: --help, and what is wrong with what was typed. In the
// library of config_flags.h, because CLI11 is slow to compile.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace runahead {

// Gives `app` its name (of a path, the last part) and our form of --help. Before subcommands are added: they inherit
// it.
void SetUpCommandLine(CLI::App& app, const std::string& name);

// What to end with after app.parse() threw. 0: --help or --version was asked for, and is on stdout now. 2: stderr says
// what is wrong, with the flag, the value and what is allowed; a misspelt name gets a hint.
int ExitCodeOf(const CLI::App& app, const CLI::ParseError& error);

}  // namespace runahead
