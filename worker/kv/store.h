// The decode side's KV store: blocks of 256 tokens a layer in one arena, handed out by leases. The face over its parts,
// which are BlockPool (memory), LeaseTable (who may use it, how long) and Arrival (what has come).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "kernels/base/event.h"
#include "kernels/base/mutex.h"
#include "kernels/base/row_form.h"
#include "server/base/clock.h"
#include "worker/kv/block_pool.h"
#include "worker/kv/bounce_buffer.h"
#include "worker/kv/lease_table.h"

namespace runahead {

// How a store keeps KV shorter than it arrives: quantised once, when a slice is in. Recomputed rows and those of decode
// pass the same quantisation before anybody attends to them.
struct KvQuantisation {
  KvQuant quant;
  DType dtype = DType::kF32;  // of rows as they arrive
  Device* host = nullptr;     // computes on host memory; outlives the store
};

struct KvStoreOptions {
  int64_t layers = 0;
  int64_t row_bytes = 0;        // K and V of one token in one layer: AttentionShape::kv_row_bytes()
  int64_t capacity_tokens = 0;  // rounded down to whole blocks
  uint64_t incarnation = 0;
  absl::Duration lease_life = kLeaseLife;
  MemoryKind tier = MemoryKind::kHost;  // where the arena is
  // Of host memory that slices pass through where the host cannot write the arena, or KV is quantised. At least a layer
  // of the whole store, for a slice may be as large; 0: that much.
  int64_t bounce_bytes = 0;
  // X of one token in one layer; 0: the store keeps none. For stores in host memory. And in which form it comes and is
  // kept.
  int64_t x_row_bytes = 0;
  RowForm x_form = RowForm::kF32;
  std::optional<KvQuantisation> quantisation = {};  // for stores in host memory, whose rows are whole groups
  // Of each layer's attention (Model::windows): what of a prompt the first query behind it does not see is not waited
  // for. Empty: there are none.
  std::vector<int64_t> windows = {};

  // K and V of one token in one layer, as the arena has them.
  int64_t stored_row_bytes() const;
};

// The first `tokens` tokens of a living lease, whose prompt begins as the new one's does.
struct SharedPrefix {
  LeaseId lease;
  int64_t tokens = 0;
};

// Thread-safe. A lease lives `lease_life` past the last of reserve, renewal and the end of a write. Bytes under way (an
// open write), who waits for the rest of them (Complete) and an open decode hold it: each ends by itself when its peer
// or its call does. Memory returns when every lease on it is dead (released or expired) and nothing pins it. Writes and
// Sequences end before the store does; the memory itself lives as long as anyone holds a reference to it. Events fire
// outside the lock, so what waits for them may call the store.
class KvStore {
 public:
  // Rows of one layer pinned for writing: the lease's memory cannot be given away while this lives, or while what it
  // committed is on its way. Used by one thread at a time. Its end may fire ready() of others, so the caller holds no
  // lock then that these need.
  class Write {
   public:
    Write(Write&&) noexcept;
    Write& operator=(Write&&) noexcept;
    ~Write();  // without Commit the rows stay uncovered
    // Fires OK when destination() may be filled: before BeginWrite returns, unless slices pass through the bounce
    // buffer and it is full. Then writes get room in the order in which they began. Room is held by slices whose bytes
    // come or are copied, so a writer whose bytes wait for another Write to be ready would wait for ever.
    Event ready() const;
    // Where the slice's bytes go, in order, cut where blocks do not follow each other in memory: memory that the host
    // writes. Empty when already_covered(), because a decode may be reading those rows.
    const std::vector<BufferRef>& destination() const;
    // Everything was covered before, or is what nobody waits for: the bytes need not be written (or sent) again.
    bool already_covered() const { return already_covered_; }
    // The bytes are in, and ready() has fired. Fires OK once the rows hold them: [begin, end) of the layer is covered,
    // the lease renewed, and the pin has ended. This is so when it returns, unless they pass through the bounce buffer:
    // then it enqueues a copy, and fires on the device's thread after that. NOT_FOUND when the lease was released
    // meanwhile; any other error is the copy's: the bytes are lost and to be sent again. Called at most once.
    Event Commit();

   private:
    friend class KvStore;
    Write() = default;
    void Abandon();
    KvStore* store_ = nullptr;  // null: moved from, or committed
    uint64_t lease_ = 0;
    uint64_t write_ = 0;  // of the lease's Arrival; 0: already covered
    bool already_covered_ = false;
    std::vector<BufferRef> rows_;               // of the arena
    std::unique_ptr<BounceBuffer::Room> room_;  // null: the bytes go to rows_ at once
  };

  // A lease held open by decode: it does not expire, and its rows may be read and appended. Destruction releases the
  // lease and gives the memory back, so whoever enqueued work on the rows keeps the Sequence until that work is done.
  class Sequence {
   public:
    Sequence(Sequence&&) noexcept;
    Sequence& operator=(Sequence&&) noexcept;
    ~Sequence();
    // Its blocks in token order: token t lies in row t % kKvBlockTokens of block blocks()[t / kKvBlockTokens] of the
    // store's arena, in every layer. Valid while this lives and is not moved.
    absl::Span<const int32_t> blocks() const { return blocks_; }
    uint64_t lease_number() const { return lease_; }
    // Whether X of the prompt lies in the same blocks of x_arena().
    bool has_x() const { return has_x_; }
    // Of tokens before this one X has come instead of KV: their rows of KV mean nothing until who decodes has made
    // them.
    int64_t kv_from() const { return kv_from_; }

   private:
    friend class KvStore;
    Sequence() = default;
    KvStore* store_ = nullptr;  // null: moved from
    uint64_t lease_ = 0;
    std::vector<int32_t> blocks_;
    bool has_x_ = false;
    int64_t kv_from_ = 0;
  };

  // Allocates arena and bounce buffer from `device`, which outlives the store, as `clock` does. INVALID_ARGUMENT when
  // not even one block fits, or a slice would not fit the bounce buffer.
  static absl::StatusOr<std::unique_ptr<KvStore>> Create(const KvStoreOptions& options, Device& device, Clock& clock);
  // Waits for the copies of committed writes.
  ~KvStore();

  // Memory for `total_tokens` (prompt + output), all at once. INVALID_ARGUMENT: prompt < 1 or total < prompt.
  // RESOURCE_EXHAUSTED: full now; OUT_OF_RANGE, naming both sizes: no empty store could hold it.
  // With `share`, the whole blocks of its prefix that have arrived in all layers, and that no write under way touches,
  // are that lease's own: as many tokens as SizeOf says then. They have arrived for the new lease too, nobody writes
  // them again through either lease, and they take no memory more. Either lease may end first. NOT_FOUND: no such
  // lease. With `with_x` X of the prompt is to arrive, too, and the sequence has room for that of its output; what it
  // shares has X then. INVALID_ARGUMENT where the store keeps none. Of tokens [0, kv_from) X is to arrive instead of
  // KV: INVALID_ARGUMENT without X, or beyond the prompt. Their KV may come all the same, from a worker that knows
  // nothing of it: it is taken, and nobody reads it. Nothing is shared with a lease that has KV from later on only, nor
  // rows of which a window hid that from it which the new lease's does not. Rows that are hidden take memory all the
  // same: blocks are of all layers.
  absl::StatusOr<LeaseId> Reserve(int64_t prompt_tokens, int64_t total_tokens, const SharedPrefix& share = {},
                                  bool with_x = false, int64_t kv_from = 0) RUNAHEAD_EXCLUDES(mu_);
  // NOT_FOUND when the lease is unknown, released or expired.
  absl::Status Renew(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // For how many tokens of prompt, and of prompt and output, it was reserved, and how many of the first ones it shares
  // with leases before or after it. NOT_FOUND as above.
  struct Size {
    int64_t prompt_tokens = 0, total_tokens = 0, shared_tokens = 0;
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

  // NOT_FOUND: no such lease (or dead). OUT_OF_RANGE: layer or tokens do not fit the prompt, some of the tokens are
  // shared and others have yet to come, or the lease takes nothing of the kind. ABORTED: overlapping write under way;
  // try again when it has ended.
  absl::StatusOr<Write> BeginWrite(const LeaseId& lease, int64_t layer, int64_t begin, int64_t end,
                                   SliceKind kind = SliceKind::kKv) RUNAHEAD_EXCLUDES(mu_);
  // Fires OK when every layer covers what of the prompt decode sees there, in every kind of the lease, CANCELLED when
  // the lease is released
  // before. NOT_FOUND at once when unknown or dead. From here on the lease does not expire: who asked opens it, or
  // releases it.
  Event Complete(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // NOT_FOUND when unknown or dead, FAILED_PRECONDITION while incomplete, or when opened already.
  absl::StatusOr<Sequence> Open(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);

  // Where blocks lie, in memory of the tier. Never changes.
  const KvArena& arena() const { return arena_; }
  // X of the same tokens under the same numbers; null where the store keeps none.
  const KvArena* x_arena() const { return x_arena_.has_value() ? &*x_arena_ : nullptr; }

  struct Stats {
    int64_t capacity_bytes = 0;
    int64_t used_bytes = 0;  // of living leases, and of dead ones that are still pinned; what is shared counts once
    int64_t leases = 0;      // living ones
    int64_t expired = 0;     // since the start
    // Of KV and of X, as they arrive, since the start: what leases were reserved for, and what came for them.
    struct Handoff {
      int64_t expected_bytes = 0, received_bytes = 0;
    };
    Handoff kv, x;
  };
  Stats stats() const RUNAHEAD_EXCLUDES(mu_);
  const KvStoreOptions& options() const { return options_; }

 private:
  KvStore(const KvStoreOptions& options, BlockPool pool, std::optional<KvArena> x_arena,
          std::unique_ptr<BounceBuffer> bounce, Clock& clock);
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  // Of rows that arrive.
  int64_t RowBytes(SliceKind kind) const;
  // How many tokens of such a prompt decode does not see, by layer.
  std::vector<int64_t> HiddenOf(int64_t prompt_tokens) const;
  Stats::Handoff& HandoffOf(SliceKind kind) RUNAHEAD_REQUIRES(mu_);
  // Of a block in all layers, X included.
  int64_t BlockBytes() const;
  int Reap() RUNAHEAD_REQUIRES(mu_);
  // Gives the blocks of ended leases back. The events to fire once the lock is released.
  std::vector<EventSource> ReturnBlocks(const std::vector<LeaseTable::Ending>& endings) RUNAHEAD_REQUIRES(mu_);
  // `came`: OK when the rows hold their bytes. NOT_FOUND when the lease died meanwhile, else `came`.
  absl::Status EndWrite(uint64_t lease, uint64_t write, const absl::Status& came) RUNAHEAD_EXCLUDES(mu_);
  void CloseSequence(uint64_t lease) RUNAHEAD_EXCLUDES(mu_);

  const KvStoreOptions options_;
  const KvArena arena_;  // the pool's, for all threads
  const std::optional<KvArena> x_arena_;
  std::unique_ptr<BounceBuffer> bounce_;  // null: the host writes the arena
  mutable Mutex mu_;
  BlockPool pool_ RUNAHEAD_GUARDED_BY(mu_);
  LeaseTable leases_ RUNAHEAD_GUARDED_BY(mu_);
  Stats::Handoff handed_kv_ RUNAHEAD_GUARDED_BY(mu_), handed_x_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
