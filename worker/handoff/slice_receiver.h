// The receiving side that all transports share: is a slice wanted, where does it go, did it arrive whole.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/mutex.h"
#include "kernels/base/row_form.h"
#include "server/base/progress_meter.h"
#include "worker/handoff/slice.h"
#include "worker/kv/store.h"

namespace runahead {

struct SliceHeader {
  Slice slice;
  uint64_t bytes = 0;
  uint64_t sum = 0;  // of its bytes, seeded by SeedOf, where Finish is to check it
};

struct SliceReceiverOptions {
  RowForm kv_form = RowForm::kF32;                    // of rows of KV as they come; of X the store says it
  std::function<void()> on_corrupt = {};              // a slice arrived corrupt; any thread, may be empty
  std::function<void(SliceVerdict)> on_verdict = {};  // a slice is answered; as on_corrupt
  std::shared_ptr<ProgressMeter> progress = nullptr;  // of who covers what came by links; null: nobody asks
};

// Thread-safe. One per store, whatever the transports. The store outlives it and its writes.
class SliceReceiver {
 public:
  using Write = std::shared_ptr<KvStore::Write>;
  // A verdict (the bytes are not wanted), or where they go.
  using Outcome = std::variant<SliceVerdict, Write>;

  SliceReceiver(KvStore& store, SliceReceiverOptions options) : store_(store), options_(std::move(options)) {}

  // Checks the slice and runs `then` once: at once; or when an overlapping write has ended, or the store has room for
  // the bytes, on the thread where that happens. Short: for progress threads. A write is ready, and is to be ended by
  // Finish or Abandon. While it waits for room it needs nothing of its caller, and keeps nobody else waiting but those
  // behind it.
  void Begin(const SliceHeader& header, std::function<void(Outcome)> then) RUNAHEAD_EXCLUDES(mu_);

  // The bytes are in and whole: covers the rows, or leaves them uncovered. Runs `then` once: at once, or on the
  // device's thread when the bytes have reached the store's memory, so it is to be short. A copy that fails is like
  // bytes that were lost on the way: CORRUPT. The receiver lives until `then` has begun.
  void Commit(const Write& write, std::function<void(SliceVerdict)> then) RUNAHEAD_EXCLUDES(mu_);
  // The same, once their sum is that of the header; else CORRUPT.
  void Finish(const SliceHeader& header, const Write& write, std::function<void(SliceVerdict)> then)
      RUNAHEAD_EXCLUDES(mu_);
  // The bytes will not come.
  void Abandon(const Write& write) RUNAHEAD_EXCLUDES(mu_);

  // The bytes came damaged, and come again if they may.
  void NoteDamaged() const;

  const std::shared_ptr<ProgressMeter>& progress() const { return options_.progress; }
  KvStore& store() const { return store_; }

 private:
  struct Waiting {
    SliceHeader header;
    std::function<void(Outcome)> then;
  };

  // `verdict`, which on_verdict hears of.
  SliceVerdict Told(SliceVerdict verdict) const;
  // Nothing where it fits.
  std::optional<SliceVerdict> Misfit(const SliceHeader& header) const;
  void WriteEnded() RUNAHEAD_EXCLUDES(mu_);

  KvStore& store_;
  const SliceReceiverOptions options_;
  Mutex mu_;
  int writes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::vector<Waiting> waiting_ RUNAHEAD_GUARDED_BY(mu_);  // for an overlapping write to end
};

}  // namespace runahead
