// runahead: the command line.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/base/command.h"
#include "server/base/command_line.h"
#include "server/base/version.h"

namespace {

// What is opened later must not become stdin, stdout or stderr where the caller closed these.
void OccupyStandardFiles() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd >= 0) close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  OccupyStandardFiles();
  CLI::App app("Runahead serves large language models with a short time to first token on long prompts.");
  runahead::SetUpCommandLine(app, "runahead");
  app.set_version_flag("--version", absl::StrCat("runahead ", runahead::Version()));
  app.require_subcommand(1);
  runahead::Command command;
  runahead::AddUpCommand(app, &command);
  runahead::AddGenerateCommand(app, &command);
  runahead::AddChatCommand(app, &command);
  runahead::AddTokenizeCommand(app, &command);
  runahead::AddDetokenizeCommand(app, &command);
  runahead::AddHealthCommand(app, &command);
  runahead::AddModelsCommand(app, &command);
  runahead::AddCacheCommand(app, &command);
  runahead::AddPullCommand(app, &command);
  runahead::AddTraceCommand(app, &command);
  runahead::AddProfileCommand(app, &command);
  runahead::AddBenchCommand(app, &command);
  runahead::AddPlanCommand(app, &command);
  runahead::AddKeysCommand(app, &command);
  runahead::AddKvprCommand(app, &command);
  // Set last, or every command would inherit it.
  app.footer("runahead COMMAND --help says what each takes.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return runahead::ExitCodeOf(app, error);
  }
  const int code = command();
  std::cout.flush();
  if (std::fflush(stdout) != 0 || !std::cout) {
    std::cerr << "runahead: the output could not be written\n";
    return code == runahead::kDone ? runahead::kFailed : code;
  }
  return code;
}
