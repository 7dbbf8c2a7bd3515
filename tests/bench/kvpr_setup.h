// Models over an emulated link, and batches in stores that loops decode, as KVPR's benchmarks need them.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/bench/must.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/decode/kvpr/profile.h"
#include "worker/decode/step_loop.h"
#include "worker/model/model.h"

namespace runahead {

struct BenchModel {
  std::shared_ptr<EmulatedLink> link;  // null: none
  std::shared_ptr<Device> device;
  std::shared_ptr<const Model> model;
  std::shared_ptr<Device> host = Must(NewCpuDevice({.threads = 1}));
  int64_t x_row_bytes() const {
    return model->config().hidden * static_cast<int64_t>(DTypeSize(device->compute_dtype()));
  }
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
  loaded.model =
      Must(LoadModel(Must(GgufFile::Open(path)), loaded.device, kUseDecode | kUseRecompute, [](int, int) {}));
  return loaded;
}

inline LaneProfile Profile(const BenchModel& of, int64_t batch) {  // without a host lane
  return Must(
      MeasureLanes(*of.model, *of.device,
                   {.rows = batch, .stored_row_bytes = of.model->kv_row_bytes(), .x_row_bytes = of.x_row_bytes()}));
}

// A batch of equal sequences, in a store of one tier, that loops decode by turns from the same positions on.
class Batch {
 public:
  Batch(const BenchModel& of, MemoryKind tier, int64_t batch, int64_t length, int64_t steps)
      : of_(of), length_(length), stream_(of.device->NewStream("decode")) {
    const ModelConfig& config = of.model->config();
    const int64_t blocks = KvBlocksFor(length + steps) * batch;
    const bool with_x = tier == MemoryKind::kHost;
    store_ = Must(KvStore::Create({.layers = config.layers,
                                   .row_bytes = of.model->kv_row_bytes(),
                                   .capacity_tokens = blocks * kKvBlockTokens,
                                   .tier = tier,
                                   .x_row_bytes = with_x ? of.x_row_bytes() : 0},
                                  *of.device, RealClock()));
    for (int64_t i = 0; i < batch; ++i) sequences_.push_back(Fill(length, length + steps, with_x));
  }

  KvStore& store() { return *store_; }
  Stream& stream() { return *stream_; }

  // Seconds of a step, the mean of `steps` after some that are not counted.
  double StepSeconds(StepLoop& loop, int64_t warm, int64_t steps) {
    absl::Time begin;
    for (int64_t step = 0; step < warm + steps; ++step) {
      if (step == warm) begin = MonotonicNow();
      std::vector<DecodeRow> rows;
      for (const KvStore::Sequence& sequence : sequences_) rows.push_back({&sequence, 7, length_ + step});
      Must(loop.Step(rows).status());
      Must(of_.device->Record(*stream_).Wait());
    }
    const double seconds = absl::ToDoubleSeconds(MonotonicNow() - begin) / static_cast<double>(steps);
    for (const KvStore::Sequence& sequence : sequences_) loop.Leave(sequence);
    return seconds;
  }

 private:
  KvStore::Sequence Fill(int64_t prompt, int64_t total, bool with_x) {
    const LeaseId lease = Must(store_->Reserve(prompt, total, {}, with_x));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> row(4096);
    for (float& value : row) value = normal(random);
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      for (const SliceKind kind : {SliceKind::kKv, SliceKind::kX}) {
        if (kind == SliceKind::kX && !with_x) continue;
        auto write = Must(store_->BeginWrite(lease, layer, 0, prompt, kind));
        for (const BufferRef& to : write.destination()) {
          for (size_t at = 0; at < to.size; at += row.size() * 4) {
            std::memcpy(to.data() + at, row.data(), std::min(row.size() * 4, to.size - at));
          }
        }
        Must(write.Commit().Wait());
      }
    }
    return Must(store_->Open(lease));
  }

  const BenchModel& of_;
  const int64_t length_;
  const std::unique_ptr<Stream> stream_;
  std::unique_ptr<KvStore> store_;
  std::vector<KvStore::Sequence> sequences_;
};

}  // namespace runahead
