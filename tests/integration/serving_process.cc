#include "tests/integration/serving_process.h"

#include <nlohmann/json.hpp>
#include <utility>

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

}  // namespace runahead::testing
