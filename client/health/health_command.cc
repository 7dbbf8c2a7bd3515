#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/base/health.h"
#include "client/base/parse.h"
#include "server/base/address.h"
#include "server/rpc/channel.h"

namespace runahead {
namespace {

constexpr char kHealth[] = "health";
// Who asks again and again (a container engine, a script) wants an answer long before its next turn.
constexpr absl::Duration kHealthTimeout = absl::Seconds(3);

struct HealthFlags {
  std::string address;
  std::string service;
};

int RunHealth(const HealthFlags& flags) {
  const absl::Status address = ParseHostPort(flags.address).status();
  if (!address.ok()) return WrongUsage(kHealth, InFlag("--address", address));
  const absl::Status health = CheckHealth(MakeChannel(flags.address), kHealthTimeout, flags.service);
  if (!health.ok()) return Refused(kHealth, health);
  std::cout << "serving\n";
  return kDone;
}

}  // namespace

void AddHealthCommand(CLI::App& app, Command* chosen) {
  CLI::App& health = *app.add_subcommand(
      kHealth, "Asks a router or worker whether it serves: exit code 0 if so, 1 if not, or if it does not answer.");
  const auto flags = std::make_shared<HealthFlags>();
  health.add_option("--address", flags->address, "Where it listens (host:port)")->required()->type_name("ADDR");
  health
      .add_option("--service", flags->service,
                  "One service of it, as runahead.v1.Inference; all of it where this is absent")
      ->type_name("NAME");
  health.callback([flags, chosen] { *chosen = [flags] { return RunHealth(*flags); }; });
}

}  // namespace runahead
