// Draws when the lanes of one KVPR step were busy, as an SVG, from the times that the step recorded.
//   kvpr_trace FILE [mha|gqa] [rho] [batch] [length] [budget in MiB] [layers drawn]
// As `kvpr` does it: on the CPU's device with an emulated link, and with a host lane where there is a budget.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/bench/kvpr_picture.h"
#include "tests/bench/kvpr_setup.h"
#include "tests/bench/must.h"
#include "worker/decode/kvpr/host_profile.h"
#include "worker/decode/kvpr/kvpr_loop.h"

namespace runahead {
namespace {

constexpr double kWidth = 960, kLeft = 110, kRowHeight = 26, kTop = 34;
constexpr int64_t kSteps = 16;
constexpr double kHostOfLink = 4;  // how fast the host lane reads, by the link's speed

struct Row {
  StepLane lane;
  const char* name;
  const char* colour;
};
// From the link to what goes back.
constexpr Row kRows[] = {{StepLane::kLink, "link", "#4c78a8"},
                         {StepLane::kRecompute, "recompute", "#f58518"},
                         {StepLane::kAttend, "attend", "#54a24b"},
                         {StepLane::kWindow, "window", "#bab0ac"},
                         {StepLane::kProject, "project, MLP", "#b279a2"},
                         {StepLane::kSignal, "q, partials", "#9d755d"},
                         {StepLane::kHost, "host lane", "#e45756"},
                         {StepLane::kStore, "write back", "#72b7b2"}};

std::string Draw(const KvprStep& step, int64_t layers) {
  const StepPicture picture = PictureOf(step.times->spans(), layers);
  const double shown_ms = absl::ToDoubleMilliseconds(picture.end - picture.begin);
  const auto x = [&](absl::Time time) {
    return kLeft + (kWidth - kLeft - 10) / shown_ms * absl::ToDoubleMilliseconds(time - picture.begin);
  };
  const double height = kTop + kRowHeight * std::size(kRows) + 24;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"8\" y=\"18\">A step of %d sequences, its "
      "first "
      "%d layers: %d positions recomputed, %d copied, %d attended on the host, %d resident</text>\n",
      kWidth, height, step.plan.cuts.size(), layers, step.plan.rows.recomputed, step.plan.rows.streamed,
      step.plan.rows.host, step.plan.rows.resident);
  for (size_t row = 0; row < std::size(kRows); ++row) {
    const double y = kTop + kRowHeight * static_cast<double>(row);
    absl::StrAppendFormat(&svg, "<text x=\"8\" y=\"%.0f\">%s</text>\n", y + 16, kRows[row].name);
    for (const StepTimes::Span& span : picture.spans) {
      if (span.lane != kRows[row].lane) continue;
      absl::StrAppendFormat(&svg,
                            "<rect x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%.0f\" fill=\"%s\" "
                            "fill-opacity=\"%.2f\"/>\n",
                            x(span.begin), y + 3, std::max(0.5, x(span.end) - x(span.begin)), kRowHeight - 6,
                            kRows[row].colour, span.layer % 2 == 0 ? 1.0 : 0.55);
    }
  }
  absl::StrAppendFormat(
      &svg,
      "<text x=\"%.0f\" y=\"%.0f\">0</text><text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%.1f ms</text>\n</svg>\n",
      kLeft, height - 8, kWidth - 10, height - 8, shown_ms);
  return svg;
}

int Main(int argc, char** argv) {
  const auto number = [&](int index, double otherwise) { return NumberAt(argc, argv, index, otherwise); };
  if (argc < 2) Must(absl::InvalidArgumentError("which file is to be written?"));
  const std::string path = WriteModel(argc > 2 && std::string(argv[2]) == "gqa");
  const LaneCosts free = Profile(Load(path, 0), 1).costs;
  const double gbps = number(3, 1) * free.kv_bytes / free.recompute_s * 8 / 1e9;
  const BenchModel of = Load(path, gbps);
  unlink(path.c_str());
  const auto batch_size = static_cast<int64_t>(number(4, 8)), length = static_cast<int64_t>(number(5, 1024));
  KvprOptions options{.max_rows = batch_size, .device_bytes = static_cast<int64_t>(number(6, 0) * (1 << 20))};
  options.emulated_host_gbps = kHostOfLink * gbps;
  LaneCosts costs = Profile(of, batch_size).costs;
  if (options.device_bytes > 0) {
    const auto stream = of.host->NewStream("profile");
    Must(MeasureHostLane(*of.model, *of.device, {*of.host, *stream, options.emulated_host_gbps}, costs));
    options.host = of.host.get();
  }
  std::string drawn;
  options.on_step = [&](const KvprStep& step) { drawn = Draw(step, static_cast<int64_t>(number(7, 3))); };
  Batch batch(of, MemoryKind::kHost, batch_size, length, kSteps + 2);
  auto split = std::make_unique<ControlledSplit>(Must(SplitController::Create(SplitObjective::kStep, costs)));
  const auto loop =
      Must(KvprLoop::Create(*of.model, *of.device, batch.store(), batch.stream(), std::move(split), options));
  batch.StepSeconds(*loop, 0, kSteps);
  std::ofstream(argv[1]) << drawn;
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
