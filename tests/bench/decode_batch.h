// A batch of equal sequences, in a store of one tier, that loops decode by turns: for benchmarks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "tests/bench/random_values.h"
#include "worker/decode/step_loop.h"
#include "worker/model/model.h"

namespace runahead {

// Of a row of X in one layer.
inline int64_t XRowBytes(const Model& model, const Device& device) {
  return model.config().hidden * static_cast<int64_t>(DTypeSize(device.compute_dtype()));
}

class DecodeBatch {
 public:
  struct Options {
    MemoryKind tier = MemoryKind::kHost;
    int64_t batch = 1;   // sequences
    int64_t tokens = 1;  // of each that are there: random KV
    int64_t room = 1;    // for tokens behind them
    int64_t rows = 1;    // of each in a step
    bool with_x = false;
  };
  // Device and model outlive it; other models of the same shape may decode it, too. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<DecodeBatch>> Create(Device& device, const Model& model,
                                                             const Options& options) {
    auto made = std::unique_ptr<DecodeBatch>(new DecodeBatch(device, options.rows));
    const int64_t blocks = KvBlocksFor(options.tokens + options.room) * options.batch;
    RUNAHEAD_ASSIGN_OR_RETURN(made->store_,
                              KvStore::Create({.layers = model.config().layers,
                                               .row_bytes = model.kv_row_bytes(),
                                               .capacity_tokens = blocks * kKvBlockTokens,
                                               .tier = options.tier,
                                               .x_row_bytes = options.with_x ? XRowBytes(model, device) : 0,
                                               .x_form = FormOf(device.compute_dtype())},
                                              device, RealClock()));
    const std::vector<std::byte> values = RandomValues(device.compute_dtype(), kValues, 1, 1);
    for (int64_t i = 0; i < options.batch; ++i) RUNAHEAD_RETURN_IF_ERROR(made->AddSequence(options, values));
    return made;
  }

  KvStore& store() { return *store_; }
  Stream& stream() { return *stream_; }

  // Seconds of each of `steps` steps from `position` on, up to which tokens are there, after `warm` that are not
  // counted; then all sequences leave the loop.
  absl::StatusOr<std::vector<double>> StepSeconds(StepLoop& loop, int64_t position, int64_t warm, int64_t steps) {
    std::vector<double> seconds;
    absl::Status status;
    for (int64_t step = 0; status.ok() && step < warm + steps; ++step) {
      const absl::Time begin = MonotonicNow();
      status = Step(loop, position + step * rows_);
      if (step >= warm) seconds.push_back(absl::ToDoubleSeconds(MonotonicNow() - begin));
    }
    for (const KvStore::Sequence& sequence : sequences_) loop.Leave(sequence);
    if (!status.ok()) return status;
    return seconds;
  }

 private:
  static constexpr int64_t kValues = 4096;  // that are different

  DecodeBatch(Device& device, int64_t rows) : device_(device), rows_(rows), stream_(device.NewStream("decode")) {}

  // As the engine does it, but for the tokens that come out.
  absl::Status Step(StepLoop& loop, int64_t position) {
    std::vector<DecodeRow> rows;
    for (const KvStore::Sequence& sequence : sequences_) {
      for (int64_t i = 0; i < rows_; ++i) rows.push_back({&sequence, 7, position + i});
    }
    const bool repeats = loop.repeats();
    if (repeats) device_.BeginStep(*stream_);
    const absl::Status status = loop.Step(rows).status();
    if (repeats) device_.EndStep(*stream_);
    const absl::Status done = device_.Record(*stream_).Wait();
    return status.ok() ? done : status;
  }

  absl::Status AddSequence(const Options& options, const std::vector<std::byte>& values) {
    RUNAHEAD_ASSIGN_OR_RETURN(const LeaseId lease, store_->Reserve({.prompt_tokens = options.tokens,
                                                                    .total_tokens = options.tokens + options.room,
                                                                    .with_x = options.with_x}));
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      RUNAHEAD_RETURN_IF_ERROR(Fill(lease, layer, options.tokens, SliceKind::kKv, values));
      if (options.with_x) RUNAHEAD_RETURN_IF_ERROR(Fill(lease, layer, options.tokens, SliceKind::kX, values));
    }
    RUNAHEAD_ASSIGN_OR_RETURN(KvStore::Sequence sequence, store_->Open(lease));
    sequences_.push_back(std::move(sequence));
    return absl::OkStatus();
  }

  absl::Status Fill(const LeaseId& lease, int64_t layer, int64_t tokens, SliceKind kind,
                    const std::vector<std::byte>& values) {
    RUNAHEAD_ASSIGN_OR_RETURN(KvStore::Write write, store_->BeginWrite(lease, layer, 0, tokens, kind));
    RUNAHEAD_RETURN_IF_ERROR(write.ready().Wait());
    for (const BufferRef& to : write.destination()) {
      for (size_t at = 0; at < to.size; at += values.size()) {
        std::memcpy(to.data() + at, values.data(), std::min(values.size(), to.size - at));
      }
    }
    return write.Commit().Wait();
  }

  Device& device_;
  const int64_t rows_;
  const std::unique_ptr<Stream> stream_;
  std::unique_ptr<KvStore> store_;
  std::vector<KvStore::Sequence> sequences_;  // end before the store does
};

}  // namespace runahead
