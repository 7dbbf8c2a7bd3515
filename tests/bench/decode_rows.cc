// Decode steps with several rows of a sequence against steps with one, by turns: plain decode, and KVPR that streams
// all KV over an emulated link which takes most of a step. On one thread of the CPU's device.
//   decode_rows [mha|gqa] [rows,...] [length] [link's time by a step's own] [rounds] [steps]
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/bench/kvpr_setup.h"
#include "tests/bench/must.h"
#include "worker/decode/decode_loop.h"
#include "worker/decode/kvpr/kvpr_loop.h"

namespace runahead {
namespace {

struct Question {
  int64_t length = 8000, rounds = 5, steps = 6;
};

// A batch of one sequence that brings so many rows to a step, and what decodes it.
struct Case {
  int64_t rows;
  std::unique_ptr<Batch> batch;
  std::unique_ptr<StepLoop> loop;
  std::vector<double> seconds = {};
  double Median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

template <typename MakeLoop>
double Compare(const char* name, const BenchModel& of, const Question& question, const std::vector<int64_t>& rows,
               const MakeLoop& make_loop) {
  constexpr int64_t kWarm = 2;
  std::vector<Case> cases;
  for (const int64_t count : rows) {
    auto batch = std::make_unique<Batch>(of, MemoryKind::kHost, 1, question.length, kWarm + question.steps + 1, count);
    std::unique_ptr<StepLoop> loop = make_loop(*batch, count);
    cases.push_back({count, std::move(batch), std::move(loop)});
  }
  for (int64_t round = 0; round < question.rounds; ++round) {
    for (Case& one : cases) one.seconds.push_back(one.batch->StepSeconds(*one.loop, kWarm, question.steps));
  }
  const double one = cases[0].Median();
  for (const Case& of_rows : cases) {
    const auto [least, most] = std::minmax_element(of_rows.seconds.begin(), of_rows.seconds.end());
    std::printf("%-10s %2ld rows of %ld: %8.2f ms a step, %.2f x one row (%.2f to %.2f)\n", name,
                static_cast<long>(of_rows.rows), static_cast<long>(question.length), 1e3 * of_rows.Median(),
                of_rows.Median() / one, *least / one, *most / one);
  }
  std::fflush(stdout);
  return one;
}

int Main(int argc, char** argv) {
  const auto argument = [&](int index, const char* otherwise) {
    return std::string(argc > index ? argv[index] : otherwise);
  };
  const std::string path = WriteModel(argument(1, "mha") == "gqa");
  std::vector<int64_t> rows = {1};
  for (const auto& count : absl::StrSplit(argument(2, "2,4,16"), ',')) {
    rows.push_back(static_cast<int64_t>(Number(std::string(count))));
  }
  Question question;
  question.length = static_cast<int64_t>(Number(argument(3, "8000")));
  question.rounds = static_cast<int64_t>(Number(argument(5, "5")));
  question.steps = static_cast<int64_t>(Number(argument(6, "6")));
  const BenchModel unpaced = Load(path, 0);
  const double one = Compare("plain", unpaced, question, rows, [&](Batch& batch, int64_t) {
    return std::make_unique<DecodeLoop>(*unpaced.model, *unpaced.device, batch.store(), batch.stream());
  });
  // All KV takes so long on the link.
  const double kv_bytes =
      static_cast<double>(question.length * unpaced.model->kv_row_bytes() * unpaced.model->config().layers);
  const double link_s = Number(argument(4, "4")) * one;
  const BenchModel paced = Load(path, kv_bytes * 8 / link_s / 1e9);
  const LaneCosts costs = Profile(paced, 1).costs;
  std::printf("the link takes %.2f ms for all KV\n", 1e3 * link_s);
  Compare("kvpr", paced, question, rows, [&](Batch& batch, int64_t count) {
    return Must(KvprLoop::Create(*paced.model, *paced.device, batch.store(), batch.stream(),
                                 std::make_unique<FixedSplit>(0, costs), {.max_rows = count}));
  });
  unlink(path.c_str());
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
