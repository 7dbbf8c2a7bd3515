// The subcommands of `runahead`. Each Add...Command describes one to CLI11 and sets `*chosen` when it was typed.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace runahead {

// What the process ends with.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;       // the service refused or failed
inline constexpr int kWrongUsage = 2;   // explained on stderr
inline constexpr int kSignalled = 128;  // plus the signal

// Runs a subcommand and returns its exit code.
using Command = std::function<int()>;

void AddUpCommand(CLI::App& app, Command* chosen);
void AddGenerateCommand(CLI::App& app, Command* chosen);
void AddChatCommand(CLI::App& app, Command* chosen);
void AddTokenizeCommand(CLI::App& app, Command* chosen);
void AddDetokenizeCommand(CLI::App& app, Command* chosen);
void AddHealthCommand(CLI::App& app, Command* chosen);
void AddModelsCommand(CLI::App& app, Command* chosen);
void AddCacheCommand(CLI::App& app, Command* chosen);
void AddPullCommand(CLI::App& app, Command* chosen);
void AddTraceCommand(CLI::App& app, Command* chosen);
void AddProfileCommand(CLI::App& app, Command* chosen);
void AddBenchCommand(CLI::App& app, Command* chosen);
void AddPlanCommand(CLI::App& app, Command* chosen);
void AddKeysCommand(CLI::App& app, Command* chosen);
void AddKvprCommand(CLI::App& app, Command* chosen);

}  // namespace runahead
