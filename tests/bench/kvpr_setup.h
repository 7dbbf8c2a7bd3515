// Models over an emulated link, and batches in stores that loops decode, as KVPR's benchmarks need them.
#pragma once

#include <unistd.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/bench/decode_batch.h"
#include "tests/bench/must.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/decode/kvpr/profile.h"
#include "worker/decode/step_loop.h"
#include "worker/format/gguf.h"
#include "worker/model/model.h"

namespace runahead {

struct BenchModel {
  std::shared_ptr<EmulatedLink> link;  // null: none
  std::shared_ptr<Device> device;
  std::shared_ptr<const Model> model;
  std::shared_ptr<Device> host = Must(NewCpuDevice({.threads = 1}));
  int64_t x_row_bytes() const { return XRowBytes(*model, *device); }
};

inline std::string WriteModel(bool gqa) {
  SyntheticModel model;
  model.layers = 4;
  model.hidden = 512;
  model.heads = 8;
  model.kv_heads = gqa ? 2 : 8;
  model.ffn = 1376;
  model.context_length = 8192;
  const std::string path = absl::StrCat("/tmp/runahead_bench_kvpr_", getpid(), ".gguf");
  Must(WriteSyntheticGguf(model, path));
  return path;
}

inline BenchModel Load(const std::string& path, double link_gbps) {
  BenchModel loaded;
  CpuDeviceOptions options{.threads = 1};
  if (link_gbps > 0) options.emulated_link = loaded.link = Must(EmulatedLink::Create({.gbps = link_gbps}));
  loaded.device = Must(NewCpuDevice(options));
  loaded.model = Must(LoadModel(Must(OpenGguf(path)), loaded.device, kUseDecode | kUseRecompute, [](int, int) {}));
  return loaded;
}

inline LaneProfile Profile(const BenchModel& of, int64_t batch) {  // without a host lane
  return Must(MeasureLanes(*of.model, *of.device,
                           {.rows = batch,
                            .stored_row_bytes = of.model->kv_row_bytes(),
                            .x_row_bytes = of.x_row_bytes(),
                            .x_form = FormOf(of.device->compute_dtype())}));
}

// A batch that loops decode by turns from the same position on; where it is in host memory, there is X, too.
class Batch {
 public:
  // `rows`: of each sequence in a step.
  Batch(const BenchModel& of, MemoryKind tier, int64_t batch, int64_t length, int64_t steps, int64_t rows = 1)
      : length_(length),
        batch_(Must(DecodeBatch::Create(*of.device, *of.model,
                                        {.tier = tier,
                                         .batch = batch,
                                         .tokens = length,
                                         .room = steps * rows,
                                         .rows = rows,
                                         .with_x = tier == MemoryKind::kHost}))) {}

  KvStore& store() { return batch_->store(); }
  Stream& stream() { return batch_->stream(); }

  // Seconds of a step, the mean of `steps` after some that are not counted.
  double StepSeconds(StepLoop& loop, int64_t warm, int64_t steps) {
    const std::vector<double> seconds = Must(batch_->StepSeconds(loop, length_, warm, steps));
    return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(steps);
  }

 private:
  const int64_t length_;
  const std::unique_ptr<DecodeBatch> batch_;
};

}  // namespace runahead
