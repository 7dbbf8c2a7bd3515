// What a decode step of KVPR asks of a GPU, and how long it takes where each call and each launch takes its time: for
// OPT-6.7B's shape on an H100's rates, beside the step that bytes and operations alone promise.
//   kvpr_launches [batch] [length] [us a call] [us a launch] [GiB for KV and X] [layers]
#include <cstdio>
#include <string>

#include "tests/bench/must.h"
#include "tests/testing/simulated_kvpr.h"

namespace runahead {
namespace {

int Main(int argc, char** argv) {
  const auto number = [&](int index, double otherwise) { return NumberAt(argc, argv, index, otherwise); };
  const auto batch = static_cast<int64_t>(number(1, 64)), length = static_cast<int64_t>(number(2, 1024));
  const auto layers = static_cast<int64_t>(number(6, 8));
  const testing::SimulatedRates rates{.call_s = 1e-6 * number(3, 5), .launch_s = 1e-6 * number(4, 5)};
  const auto resident = static_cast<int64_t>(number(5, 8) * (1 << 30)) * layers / testing::kOpt67BLayers;
  testing::SimulatedKvpr kvpr(testing::Opt67B(layers), batch, length, resident, rates);
  const testing::SimulatedKvpr::Measured measured = kvpr.Run();
  const double whole = static_cast<double>(testing::kOpt67BLayers) / static_cast<double>(layers);
  const auto of_a_layer = [&](int64_t count) { return static_cast<double>(count) / static_cast<double>(layers); };
  const auto mean = [&](int64_t rows) { return static_cast<double>(rows) / static_cast<double>(batch); };
  const LaneRows& rows = measured.plan.rows;
  std::printf("OPT-6.7B, %ld sequences of %ld: of each %.0f recomputed (%.0f of it from resident X), %.0f copied\n",
              static_cast<long>(batch), static_cast<long>(length), mean(rows.recomputed),
              mean(rows.recomputed - rows.x_streamed), mean(rows.streamed));
  std::printf("a layer: %.1f calls, of them %.1f to the host; %.1f launches, of them %.1f copies and %.1f products\n",
              of_a_layer(measured.counts.calls), of_a_layer(measured.counts.host_calls),
              of_a_layer(measured.counts.launches), of_a_layer(measured.counts.copies),
              of_a_layer(measured.counts.products));
  std::printf("tables a step: %ld\n", static_cast<long>(measured.counts.tables));
  std::printf("a step of %ld layers: promised %.1f ms, predicted with calls and launches %.1f ms, %.3f times as long\n",
              static_cast<long>(testing::kOpt67BLayers), 1e3 * whole * measured.promised_s,
              1e3 * whole * measured.step_s, measured.step_s / measured.promised_s);
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
