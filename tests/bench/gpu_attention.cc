#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tests/bench/gpu_model.h"
#include "tests/bench/gpu_suites.h"

namespace runahead {
namespace {

// The last `queries` positions of a prompt of `length`.
struct Problem {
  int64_t queries, length;
  bool dense = false;  // the whole rectangle is multiplied
};

absl::Status BenchProblem(const Bench& bench, const AttentionShape& shape, const Problem& problem) {
  Device& device = *bench.device;
  const int64_t cols = shape.heads * shape.head_dim;
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor q, RandomTensor(device, problem.queries, cols));
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor out, EmptyTensor(device, device.compute_dtype(), problem.queries, cols));
  RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef kv, RandomMemory(device, problem.length * shape.kv_row_bytes()));
  const std::unique_ptr<Stream> stream = device.NewStream("bench");
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const KvTable> table,
                            device.MakeKvTable(*stream, KvLayout::OnePage(problem.queries, problem.length,
                                                                          problem.dense ? problem.length : 0)));
  const Work attend = [&] { return device.Attention(*stream, q, shape, *table, kv, out); };
  RUNAHEAD_ASSIGN_OR_RETURN(const Timing timing, TimeAlone(device, *stream, bench.seconds, attend));
  const double flops = problem.dense ? 4.0 * static_cast<double>(cols) * static_cast<double>(problem.queries) *
                                           static_cast<double>(problem.length)
                                     : AttentionFlops(shape.heads, shape.head_dim, problem.queries, problem.length);
  bench.report.Add({.suite = "attention",
                    .model = absl::StrCat("heads ", shape.heads, "/", shape.kv_heads),
                    .shape = absl::StrCat("q=", problem.queries, " kv=", problem.length),
                    .what = problem.dense ? "dense rectangle" : "causal",
                    .value = flops / timing.median_s / 1e12,
                    .unit = "TFLOP/s",
                    .timing = timing});
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchAttention(const Bench& bench) {
  const Problem problems[] = {{2048, 2048},      {8192, 8192},  {32768, 32768},
                              {2048, 8192},      {4096, 32768},  // a part behind a prefix
                              {8192, 8192, true}};
  for (const int64_t kv_heads : {32, 8}) {
    AttentionShape shape{32, kv_heads, 128, bench.device->compute_dtype(), 1 / std::sqrt(128.0f)};
    if (bench.tiny) shape = {4, std::min<int64_t>(kv_heads / 4, 4), 32, shape.kv_dtype, shape.scale};
    for (const Problem& problem : problems) {
      RUNAHEAD_RETURN_IF_ERROR(
          BenchProblem(bench, shape, {bench.Size(problem.queries), bench.Size(problem.length), problem.dense}));
    }
  }
  return absl::OkStatus();
}

}  // namespace runahead
