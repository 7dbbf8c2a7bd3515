#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "client/base/command.h"
#include "client/base/connection.h"
#include "client/base/health.h"
#include "client/base/parse.h"
#include "client/base/ready_page.h"
#include "server/base/address.h"
#include "server/rpc/channel.h"

namespace runahead {
namespace {

constexpr char kHealth[] = "health";
// Who asks again and again (a container engine, a script) wants an answer long before its next turn.
constexpr absl::Duration kHealthTimeout = absl::Seconds(3);

struct HealthFlags {
  std::string address, metrics, gateway;
  std::string service;
  TlsFlags tls;
};

int Say(const absl::Status& health) {
  if (!health.ok()) return Refused(kHealth, health);
  std::cout << "serving\n";
  return kDone;
}

int RunHealth(const HealthFlags& flags) {
  const struct {
    const char* flag;
    const std::string& address;
  } ports[] = {{"--address", flags.address}, {"--metrics", flags.metrics}, {"--gateway", flags.gateway}};
  int given = 0;
  for (const auto& [flag, address] : ports) {
    if (address.empty()) continue;
    ++given;
    if (const absl::Status status = ParseHostPort(address).status(); !status.ok()) {
      return WrongUsage(kHealth, InFlag(flag, status));
    }
  }
  if (given != 1) return WrongUsage(kHealth, WrongFlag("give one of --address, --metrics and --gateway"));
  if (!flags.metrics.empty()) return Say(AskReady(flags.metrics, kReadyOfMetrics, kHealthTimeout));
  if (!flags.gateway.empty()) return Say(AskReady(flags.gateway, kHealthOfGateway, kHealthTimeout));
  const absl::StatusOr<ChannelTls> tls = flags.tls.Read();
  if (!tls.ok()) return WrongUsage(kHealth, tls.status());
  return Say(
      WithTlsFlags(CheckHealth(MakeChannel(flags.address, kProcessKeepAlive, {}, *tls), kHealthTimeout, flags.service),
                   flags.tls.given()));
}

}  // namespace

void AddHealthCommand(CLI::App& app, Command* chosen) {
  CLI::App& health = *app.add_subcommand(
      kHealth,
      "Asks a router, worker or gateway whether it serves: exit code 0 if so, 1 if not, or if it does not answer.");
  const auto flags = std::make_shared<HealthFlags>();
  health.add_option("--address", flags->address, "Where it listens (host:port)")->type_name("ADDR");
  health
      .add_option(
          "--metrics", flags->metrics,
          "Instead: its metrics port, which says whether all of it serves, and wants no certificate (host:port)")
      ->type_name("ADDR");
  health.add_option("--gateway", flags->gateway, "Instead: where a gateway speaks HTTP (host:port)")->type_name("ADDR");
  health
      .add_option("--service", flags->service,
                  "One service of it, as runahead.v1.Inference; all of it where this is absent")
      ->type_name("NAME");
  flags->tls.AddTo(health);
  health.callback([flags, chosen] { *chosen = [flags] { return RunHealth(*flags); }; });
}

}  // namespace runahead
