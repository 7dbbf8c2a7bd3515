// The decode side's KV store: blocks of 256 tokens a layer in one host arena, handed out by leases.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/device.h"
#include "kernels/base/event.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"
#include "worker/kv/interval_set.h"

namespace runahead {

inline constexpr int64_t kKvBlockTokens = 256;
inline constexpr absl::Duration kLeaseLife = absl::Seconds(30);

// Never reused; who was not told it cannot guess it.
struct LeaseId {
  uint64_t incarnation = 0;
  uint64_t number = 0;  // random
  uint32_t epoch = 0;   // of the worker, when it gave the lease
  friend bool operator==(const LeaseId&, const LeaseId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const LeaseId& id) {
    return H::combine(std::move(h), id.incarnation, id.number, id.epoch);
  }
};

struct KvStoreOptions {
  int64_t layers = 0;
  int64_t row_bytes = 0;        // K and V of one token in one layer: AttentionShape::kv_row_bytes()
  int64_t capacity_tokens = 0;  // rounded down to whole blocks
  uint64_t incarnation = 0;
  absl::Duration lease_life = kLeaseLife;
};

// Thread-safe. A lease lives `lease_life` past the last of reserve, renewal and the end of a write. Bytes under way (an
// open write), who waits for the rest of them (Complete) and an open decode hold it: each ends by itself when its peer
// or its call does. Memory returns when the lease is dead (released or expired) and nothing pins it. Writes and
// Sequences end before the store does; the memory itself lives as long as anyone holds a reference to it. Events fire
// outside the lock, so what waits for them may call the store.
class KvStore {
 public:
  // Rows of one layer pinned for writing: the lease's memory cannot be given away while this lives. Used by one thread
  // at a time.
  class Write {
   public:
    Write(Write&&) noexcept;
    Write& operator=(Write&&) noexcept;
    ~Write();  // without Commit the rows stay uncovered
    // Where the slice's bytes go, in order, cut where blocks do not follow each other in memory. Empty when
    // already_covered(), because a decode may be reading those rows.
    const std::vector<BufferRef>& destination() const { return destination_; }
    // Everything was covered before: the bytes need not be written (or sent) again.
    bool already_covered() const { return already_covered_; }
    // The bytes are in: marks [begin, end) of the layer covered, renews the lease and ends the pin. NOT_FOUND when the
    // lease was released meanwhile. Called at most once.
    absl::Status Commit();

   private:
    friend class KvStore;
    Write() = default;
    KvStore* store_ = nullptr;  // null: moved from, or committed
    uint64_t lease_ = 0;
    uint64_t write_ = 0;
    bool already_covered_ = false;
    std::vector<BufferRef> destination_;
  };

  // A lease held open by decode: it does not expire, and its rows may be read and appended. Destruction releases the
  // lease and gives the memory back, so whoever enqueued work on the rows keeps the Sequence until that work is done.
  class Sequence {
   public:
    Sequence(Sequence&&) noexcept;
    Sequence& operator=(Sequence&&) noexcept;
    ~Sequence();
    // KV of a layer as spans, in token order, over the lease's whole reserved length (prompt + max_tokens, rounded up).
    const std::vector<KvSpan>& Spans(int64_t layer) const { return spans_[layer]; }
    // The one row of token `position` in `layer`.
    KvSpan Row(int64_t layer, int64_t position) const;

   private:
    friend class KvStore;
    Sequence() = default;
    KvStore* store_ = nullptr;  // null: moved from
    uint64_t lease_ = 0;
    int64_t total_tokens_ = 0;
    std::vector<int64_t> blocks_;
    std::vector<std::vector<KvSpan>> spans_;
  };

  // Allocates the arena from `device` (host memory). `clock` outlives the store. INVALID_ARGUMENT when not even one
  // block fits.
  static absl::StatusOr<std::unique_ptr<KvStore>> Create(const KvStoreOptions& options, Device& device, Clock& clock);
  ~KvStore();

  // Memory for `total_tokens` (prompt + output), all at once. INVALID_ARGUMENT: prompt < 1 or total < prompt.
  // RESOURCE_EXHAUSTED: full now; OUT_OF_RANGE, naming both sizes: no empty store could hold it.
  absl::StatusOr<LeaseId> Reserve(int64_t prompt_tokens, int64_t total_tokens) RUNAHEAD_EXCLUDES(mu_);
  // NOT_FOUND when the lease is unknown, released or expired.
  absl::Status Renew(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // For how many tokens of prompt, and of prompt and output, it was reserved. NOT_FOUND as above.
  struct Size {
    int64_t prompt_tokens = 0, total_tokens = 0;
  };
  absl::StatusOr<Size> SizeOf(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // Ends the lease; idempotent. An incomplete lease's Complete event fires CANCELLED. Open sequences and writes keep
  // the memory until they end.
  void Release(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // What is reserved from now on belongs to `epoch` of the worker. All leases of before end, as if released, and are
  // unknown from now on; open sequences and writes keep their memory until they end.
  void BeginEpoch(uint32_t epoch) RUNAHEAD_EXCLUDES(mu_);
  uint32_t epoch() const RUNAHEAD_EXCLUDES(mu_);
  // Ends the leases whose time is over and that nothing holds; called by a timer (see LeaseReaper), and by Reserve when
  // it finds no room. Returns how many expired.
  int ReapExpired() RUNAHEAD_EXCLUDES(mu_);

  // NOT_FOUND: no such lease (or dead). OUT_OF_RANGE: layer or tokens do not fit the prompt. ABORTED: overlapping
  // write under way; try again when it has ended.
  absl::StatusOr<Write> BeginWrite(const LeaseId& lease, int64_t layer, int64_t begin, int64_t end)
      RUNAHEAD_EXCLUDES(mu_);
  // Fires OK when every layer covers the prompt, CANCELLED when the lease is released before. NOT_FOUND at once when
  // unknown or dead. From here on the lease does not expire: who asked opens it, or releases it.
  Event Complete(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // NOT_FOUND when unknown or dead, FAILED_PRECONDITION while incomplete, or when opened already.
  absl::StatusOr<Sequence> Open(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);

  struct Stats {
    int64_t capacity_bytes = 0;
    int64_t used_bytes = 0;  // of living leases, and of dead ones that are still pinned
    int64_t leases = 0;      // living ones
    int64_t expired = 0;     // since the start
  };
  Stats stats() const RUNAHEAD_EXCLUDES(mu_);
  const KvStoreOptions& options() const { return options_; }

 private:
  struct PendingWrite {
    uint64_t id = 0;
    int64_t layer = 0, begin = 0, end = 0;
  };
  // A dead lease stays here, without its coverage mattering to anyone, until its last pin goes.
  struct Lease {
    int64_t prompt_tokens = 0, total_tokens = 0;
    std::vector<int64_t> blocks;
    absl::Time expires;
    bool dead = false, open = false, complete = false, awaited = false;
    int64_t layers_covered = 0;
    std::vector<IntervalSet> covered;   // a layer each
    std::vector<PendingWrite> writing;  // each pins the lease
    EventSource completed;
  };

  KvStore(const KvStoreOptions& options, std::shared_ptr<Buffer> arena, int64_t blocks, Clock& clock);
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  // Its time is over, and nothing holds it.
  bool IsExpired(const Lease& lease) const;
  // The living lease, or NOT_FOUND.
  absl::StatusOr<Lease*> Find(const LeaseId& id) RUNAHEAD_REQUIRES(mu_);
  absl::StatusOr<std::vector<int64_t>> TakeBlocks(int64_t count) RUNAHEAD_REQUIRES(mu_);
  // Marks the lease dead and returns its memory if nothing pins it (`number` may then be gone). The event to fire once
  // the lock is released.
  EventSource Kill(uint64_t number) RUNAHEAD_REQUIRES(mu_);
  void FreeIfUnpinned(uint64_t number) RUNAHEAD_REQUIRES(mu_);
  absl::Status EndWrite(uint64_t number, uint64_t write, bool commit) RUNAHEAD_EXCLUDES(mu_);
  void CloseSequence(uint64_t number) RUNAHEAD_EXCLUDES(mu_);
  // Tokens [begin, end) of a layer as ranges of the arena, joined where they touch.
  std::vector<KvSpan> SpansOf(const std::vector<int64_t>& blocks, int64_t layer, int64_t begin, int64_t end) const;

  const KvStoreOptions options_;
  const std::shared_ptr<Buffer> arena_;  // [layers][blocks][kKvBlockTokens][row_bytes]
  const int64_t block_count_;
  Clock& clock_;
  mutable Mutex mu_;
  std::vector<bool> block_used_ RUNAHEAD_GUARDED_BY(mu_);
  int64_t blocks_free_ RUNAHEAD_GUARDED_BY(mu_);
  uint32_t epoch_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int64_t living_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int64_t expired_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  uint64_t next_write_ RUNAHEAD_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Lease>> leases_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
