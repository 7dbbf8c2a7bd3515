#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/base/parse.h"
#include "server/base/api_key.h"
#include "server/rpc/tenant_key.h"

namespace runahead {
namespace {

constexpr char kKeysNew[] = "keys new";

struct NewFlags {
  std::string name;
  bool json = false;
};

int RunNew(const NewFlags& flags) {
  if (!IsApiKeyName(flags.name)) {
    return WrongUsage(
        kKeysNew, WrongFlag("NAME: is no name; allowed: 1 to ", kMaxTenantBytes, " letters, digits, '.', '-' and '_'"));
  }
  const std::string key = DrawApiKey();
  const std::string hash = ApiKeyHashText(HashOfApiKey(key));
  if (flags.json) {
    std::cout << nlohmann::ordered_json{{"name", flags.name}, {"key", key}, {"hash", hash}}.dump() << "\n";
    return kDone;
  }
  std::cout << "  - name: \"" << flags.name << "\"\n    hash: " << hash << "\n" << std::flush;
  std::cerr << "\nThe key, which is shown this once and kept nowhere:\n" << key << "\n";
  return kDone;
}

}  // namespace

void AddKeysCommand(CLI::App& app, Command* chosen) {
  CLI::App& keys = *app.add_subcommand("keys", "Makes API keys for a router that runs with --api-keys.");
  keys.require_subcommand(1);
  CLI::App& made = *keys.add_subcommand(
      "new",
      "Draws a key of 256 random bits. The entry of the router's file, with the key's hash, goes to stdout, and the "
      "key\n"
      "to stderr: (echo keys:; runahead keys new alice) >api-keys.yaml begins the file, runahead keys new bob\n"
      ">>api-keys.yaml goes on with it.");
  const auto flags = std::make_shared<NewFlags>();
  made.add_option("name", flags->name, "Whose it is: its tenant, and its name in logs and metrics")
      ->required()
      ->type_name("NAME");
  made.add_flag("--json", flags->json, "One JSON object on stdout: {\"name\",\"key\",\"hash\"}");
  made.callback([flags, chosen] { *chosen = [flags] { return RunNew(*flags); }; });
}

}  // namespace runahead
