// A cost file, and as a file of its own a fit file of the same text.
#include "client/plan/cost_file.h"

#include "client/plan/fit_file.h"
#include "scheduler/partition/chain_simulator.h"
#include "tests/fuzz/fuzz.h"

namespace runahead {
namespace {

void CheckCost(const CostModel& model) {
  const auto text = PrintCostFile(model, {"a comment"});
  if (text.ok()) {
    RUNAHEAD_CHECK(ParseCostFile(*text, "c.yaml").ok());
  } else {
    fuzz::CheckRefusal(text.status(), "");
  }
  // A simulation takes a time, or says why there is none.
  const auto run = SimulateChain(model, Schedule::kKvr, {300, 200});
  if (!run.ok()) return fuzz::CheckRefusal(run.status(), "");
  RUNAHEAD_CHECK(run->ttft_s >= 0);
}

}  // namespace

void Fuzz(std::string_view input) {
  const auto model = ParseCostFile(std::string(input), "c.yaml");
  if (model.ok()) {
    if (model->layers <= 256) CheckCost(*model);  // a simulation takes time by them
  } else {
    fuzz::CheckRefusal(model.status(), "c.yaml");
  }
  const std::string path = fuzz::WriteFile("f.yaml", input);
  const auto fit = ReadFitFile(path);
  if (!fit.ok()) return fuzz::CheckRefusal(fit.status(), path);
  if (const auto found = FitOf(*fit); !found.ok()) fuzz::CheckRefusal(found.status(), "");
}

}  // namespace runahead
