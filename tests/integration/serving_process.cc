#include "tests/integration/serving_process.h"

#include <httplib.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace runahead::testing {
namespace {

std::vector<std::string> WithReadyLine(std::vector<std::string> args) {
  args.insert(args.end(), {"--ready-fd", "1"});
  return args;
}

}  // namespace

ServingProcess::ServingProcess(std::vector<std::string> args) : process(WithReadyLine(std::move(args))) {
  if (!process.ReadOutUntil("\n")) return;
  const nlohmann::json ready = nlohmann::json::parse(process.out(), nullptr, false);
  if (ready.is_discarded()) return;
  address = ready.at("address");
  metrics = ready.at("metrics");
}

int64_t StatusBytes(pid_t pid, const std::string& name) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(in, line);) {
    int64_t kib = 0;
    absl::string_view value = line;
    if (absl::ConsumePrefix(&value, name + ":") && absl::ConsumeSuffix(&value, " kB") &&
        absl::SimpleAtoi(value, &kib)) {
      return kib << 10;
    }
  }
  ADD_FAILURE() << "no " << name << " of process " << pid;
  return 0;
}

double MetricOf(const std::string& metrics, const std::string& line) {
  httplib::Client client("http://" + metrics);
  const auto page = client.Get("/metrics");
  const size_t at = page ? page->body.find("\n" + line + " ") : std::string::npos;
  return at == std::string::npos ? -1 : std::atof(page->body.c_str() + at + line.size() + 2);
}

}  // namespace runahead::testing
