// Who of the decode workers may have KV of the beginning of a prompt.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/base/mutex.h"
#include "scheduler/placement/known_beginnings.h"
#include "server/router/fleet.h"
#include "server/router/router_metrics.h"

namespace runahead {

// Whether KV of sequences that ended stays there, for the worker itself to compute rests behind it, or for chains.
inline bool HasBeginnings(const v1::Capabilities& worker) {
  return worker.keeps_beginnings() || worker.lends_beginnings();
}

// Thread-safe. Its lock is held for as long as it takes to compare a prompt with what each worker may have of it.
class KnownIndex {
 public:
  // Not `on`: it never knows anything. `fleet` and `metrics` must outlive it.
  KnownIndex(bool on, const Fleet& fleet, RouterMetrics& metrics) : on_(on), fleet_(fleet), metrics_(metrics) {}

  bool on() const { return on_; }

  // The worker has KV of these ids, and keeps it unless it does not say that it does.
  void Learn(const LiveWorker& worker, absl::string_view salt, absl::Span<const int32_t> ids) RUNAHEAD_EXCLUDES(mu_);

  // Rises whenever something is learned: who found nothing may look again. What was learned until a number is there, or
  // gone, when a worker is asked after that number was read.
  uint64_t lessons() const { return lessons_; }

  struct Found {
    std::shared_ptr<const LiveWorker> worker;
    int64_t tokens = 0;  // kLeastKnownTokens or more of the prompt's first
    int64_t rests = 0;   // of prompts that it computes now
  };
  // Those of `workers`, in their order, that may have KV of the beginning of a prompt of these ids.
  std::vector<Found> Find(absl::Span<const std::shared_ptr<const LiveWorker>> workers, absl::string_view salt,
                          absl::Span<const int32_t> ids) RUNAHEAD_EXCLUDES(mu_);

  // A prompt's rest that a decode worker computes, while this lives; the index outlives it.
  class Rest {
   public:
    Rest(KnownIndex& index, const LiveWorker& worker);
    ~Rest();
    Rest(const Rest&) = delete;
    Rest& operator=(const Rest&) = delete;

   private:
    KnownIndex& index_;
    const int worker_;
  };

  // The worker, asked after `asked` lessons (lessons()), said that it has less than `least` of them. What was learned
  // since stays: the answer may be older. Where windows hide rows that may be so of these ids alone, and not of longer
  // ones that begin so: then nothing is forgotten, and who asks again loses a call.
  void Gone(const LiveWorker& worker, absl::string_view salt, absl::Span<const int32_t> ids, int64_t least,
            uint64_t asked) RUNAHEAD_EXCLUDES(mu_);

  // The worker, asked after `asked` lessons, said that it has evicted the beginnings that have these BeginningHash.
  // What was learned since stays.
  void Evicted(const LiveWorker& worker, absl::Span<const uint64_t> hashes, uint64_t asked) RUNAHEAD_EXCLUDES(mu_);

  // What the worker, or all workers, may have: of all salts, or of one.
  KnownBeginnings::Size SizeOf(const LiveWorker& worker, std::optional<absl::string_view> salt) RUNAHEAD_EXCLUDES(mu_);
  KnownBeginnings::Size SizeOfAll(std::optional<absl::string_view> salt) RUNAHEAD_EXCLUDES(mu_);

  // Nobody has anything any more of what was learned until now, of all salts or of one. Returns how many tokens that
  // was.
  int64_t Forget(std::optional<absl::string_view> salt) RUNAHEAD_EXCLUDES(mu_);

 private:
  // What workers had that are gone, or drain, is forgotten.
  void ForgetOthers() RUNAHEAD_EXCLUDES(mu_);
  void ShowSize() RUNAHEAD_REQUIRES(mu_);

  const bool on_;
  const Fleet& fleet_;
  RouterMetrics& metrics_;
  std::atomic<uint64_t> lessons_ = 0;
  Mutex mu_;
  KnownBeginnings known_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<int, int64_t> rests_ RUNAHEAD_GUARDED_BY(mu_);  // by the worker's index; none is 0
};

}  // namespace runahead
