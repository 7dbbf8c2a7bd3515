// Stands for router and workers in tests of what starts them. What it does beside serving health is told by --behaviour
// or by the environment variable of its --name (FAKE_CHILD_decode_0):
//   serve       until SIGTERM (the default)
//   exit        exit code 3 at once
//   serve-exit  the ready line, then exit code 4
//   nonsense    a wrong ready line, then until SIGTERM
//   close       no ready line, then until SIGTERM
//   deaf        serve, but SIGTERM does nothing
//   early       serve, though SIGUSR1 came before it waited for signals
// With FAKE_CHILD_LOG it appends "NAME stopped" to that file when it is asked to stop.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "server/base/logging.h"
#include "server/base/metrics.h"
#include "server/base/metrics_server.h"
#include "server/base/process.h"
#include "server/base/signals.h"
#include "server/rpc/server.h"

namespace {

std::string Environment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

// --key=value
std::map<std::string, std::string> Flags(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    absl::ConsumePrefix(&arg, "--");
    const size_t equals = arg.find('=');
    if (equals != absl::string_view::npos)
      flags[std::string(arg.substr(0, equals))] = std::string(arg.substr(equals + 1));
  }
  return flags;
}

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "fake_child: %s\n", status.ToString().c_str());
  std::_Exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags = Flags(argc, argv);
  const std::string binary = argv[0];
  const bool gateway = binary.size() > 8 && binary.substr(binary.size() - 8) == "-gateway";
  const std::string name = flags.count("name") > 0 ? flags["name"] : gateway ? "gateway" : "router";
  std::string behaviour = flags["behaviour"];
  if (behaviour.empty()) behaviour = Environment("FAKE_CHILD_" + absl::StrReplaceAll(name, {{"-", "_"}}));
  const int ready_fd = std::stoi(flags["ready-fd"]);
  if (behaviour == "exit") return 3;
  if (behaviour == "early") raise(SIGUSR1);
  runahead::InitLogging(name, runahead::LogLevel::kInfo,
                        flags["log-format"] == "json" ? runahead::LogFormat::kJson : runahead::LogFormat::kText);

  runahead::StopSignal stop;
  if (const auto status = runahead::DieWithParent(std::stoi(flags["parent-pid"])); !status.ok()) Fail(status);
  const auto server = runahead::RpcServer::Start({.listen = flags["listen"], .services = {}, .health_names = {}});
  if (!server.ok()) Fail(server.status());
  runahead::MetricRegistry registry("fake");
  const auto metrics = runahead::MetricsServer::Start(flags["metrics-listen"], registry);
  if (!metrics.ok()) Fail(metrics.status());
  (*server)->SetServing(true);
  if (behaviour == "nonsense") {
    if (write(ready_fd, "hello\n", 6) != 6) return 1;
  } else if (behaviour == "close") {
    close(ready_fd);
  } else if (const auto status = runahead::WriteReadyLine(ready_fd, (*server)->address(), (*metrics)->address());
             !status.ok()) {
    Fail(status);
  }
  if (behaviour == "serve-exit") std::_Exit(4);
  stop.Wait();
  while (behaviour == "deaf") pause();
  if (const std::string log = Environment("FAKE_CHILD_LOG"); !log.empty()) {
    std::ofstream(log, std::ios::app) << name << " stopped\n";
  }
  return 0;
}
