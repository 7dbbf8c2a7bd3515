// The decode side's KV store: blocks of 256 tokens a layer in one arena, handed out by leases. The face over its parts,
// which are BlockPool (memory), LeaseTable (who may use it, how long) and Arrival (what has come).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "kernels/base/event.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"
#include "worker/kv/arrival_buffers.h"
#include "worker/kv/beginnings.h"
#include "worker/kv/block_pool.h"
#include "worker/kv/bounce_buffer.h"
#include "worker/kv/eviction_news.h"
#include "worker/kv/lease_request.h"
#include "worker/kv/lease_table.h"
#include "worker/kv/store_options.h"

namespace runahead {

// A lease may be promised memory that it does not have yet. What is promised and what is free are counted in blocks of
// the whole store: new leases are given only what is free and promised to nobody, while leases that grow take any free
// block. So a promise may be broken for a while, and who grows may find nothing free: then somebody is parked.
//
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
    BounceBuffer* bounce_ = nullptr;            // null: the bytes go to rows_ at once
    std::unique_ptr<BounceBuffer::Room> room_;  // of bounce_
  };

  // Rows of KV of an open sequence, or those that a lease began with, for who reads them while it is decoded or
  // computed: their blocks are given to nobody else while this lives, whatever becomes of the lease. Used by one thread
  // at a time.
  class Lent {
   public:
    Lent(Lent&&) noexcept;
    Lent& operator=(Lent&&) noexcept;
    ~Lent();  // its end may fire OnFreed
    // Tokens [begin(), end()) of the sequence, or of the lease's prompt.
    int64_t begin() const { return begin_; }
    int64_t end() const { return end_; }
    // Those from `from` on, at least begin(), in token order, joined where they touch. As the store keeps them.
    std::vector<KvSpan> Spans(int64_t layer, int64_t from) const;

   private:
    friend class KvStore;
    Lent() = default;
    KvStore* store_ = nullptr;     // null: moved from
    std::vector<int32_t> blocks_;  // from the one on that has begin_
    int64_t begin_ = 0, end_ = 0;
  };

  // A lease held open by decode: it does not expire, and its rows may be read and appended. Destruction releases the
  // lease and gives the memory back, so whoever enqueued work on the rows keeps the Sequence until that work is done.
  class Sequence {
   public:
    Sequence(Sequence&&) noexcept;
    Sequence& operator=(Sequence&&) noexcept;
    ~Sequence();
    // Its blocks in token order: token t lies in row t % kKvBlockTokens of block blocks()[t / kKvBlockTokens] of the
    // store's arena, in every layer. Valid while this lives and is not moved, grown or parked.
    absl::Span<const int32_t> blocks() const { return blocks_; }
    uint64_t lease_number() const { return lease_; }
    int64_t prompt_tokens() const { return prompt_tokens_; }
    // The tokens, from the first on, that were handed off: all of the prompt's, unless LeaseRequest said less, or with
    // arriving_tokens those that EndArrival said. Rows of the others mean nothing until who decodes has made them.
    int64_t handed_tokens() const { return handed_tokens_; }
    // Whether X of the prompt lies in the same blocks of x_arena().
    bool has_x() const { return has_x_; }
    // Of tokens before this one X has come instead of KV: their rows of KV mean nothing until who decodes has made
    // them.
    int64_t kv_from() const { return kv_from_; }
    // Whether its memory grows, as LeaseRequest::expected_tokens says; only then Park is for it.
    bool grows() const { return grows_; }
    bool parked_first() const { return parked_first_; }
    int64_t total_tokens() const { return total_tokens_; }
    // Has memory for `tokens` tokens from now on, at most total_tokens: rows that it has keep theirs.
    // RESOURCE_EXHAUSTED, and nothing has changed, where too little is free, or `leave` blocks would not stay free
    // beside it; what is promised to others is taken.
    absl::Status Grow(int64_t tokens, int64_t leave = 0);
    // Gives all of its memory back, and what its rows hold is gone: no work on them is under way. The lease lives on;
    // from now on it counts for at least `tokens` tokens, at most total_tokens, all of which it is promised until Grow.
    // Nobody shares its rows any more; leases that did keep theirs.
    void Park(int64_t tokens);
    // The rows of KV of tokens [begin, end), which it has memory for and has filled, and does not change any more.
    Lent Lend(int64_t begin, int64_t end) const;
    // Of a lease with least_known_tokens: copies that whoever reads rows makes before, of each layer one of KV, and one
    // of X where it has X. None where what is known ends with a block, and once EndCopies or Park was called. Valid as
    // blocks() is.
    std::vector<CopyPart> Copies() const;
    // They have been made, or nobody will make them: what they read is held no longer. May fire OnFreed.
    void EndCopies();
    // KV of the first tokens, which have these ids and do not change any more, is for leases with least_known_tokens
    // from now on, and stays when the lease ends, until its memory is needed. After EndCopies; again once there is more
    // of it. Nothing is kept where the store does not
    // keep (keeps()), of a lease that is `not_kept`, that took KV from elsewhere (arriving_tokens) or that has been
    // released, and of one that is parked.
    void Keep(absl::Span<const int32_t> ids);

   private:
    friend class KvStore;
    Sequence() = default;
    KvStore* store_ = nullptr;  // null: moved from
    uint64_t lease_ = 0;
    std::vector<int32_t> blocks_;
    int64_t prompt_tokens_ = 0, handed_tokens_ = 0, known_tokens_ = 0;
    bool has_x_ = false;
    int64_t kv_from_ = 0;
    bool grows_ = false, parked_first_ = false;
    int64_t total_tokens_ = 0;
    std::optional<int32_t> copied_from_;
  };

  // Allocates arena and bounce buffer from `device`, which outlives the store, as `clock` does. INVALID_ARGUMENT when
  // not even one block fits, or a slice would not fit the bounce buffer.
  static absl::StatusOr<std::unique_ptr<KvStore>> Create(const KvStoreOptions& options, Device& device, Clock& clock);
  // Waits for the copies of committed writes.
  ~KvStore();

  // INVALID_ARGUMENT: fields that do not go together, or X where the store keeps none. RESOURCE_EXHAUSTED: full now,
  // for what it is to have at once and what it is to be promised do not fit into what is free and promised to nobody;
  // for a lease that grows, beside others that grow, a 32nd of a store of 8 blocks or more must be left besides, at
  // least a block. OUT_OF_RANGE, naming both sizes:
  // no empty store could hold total_tokens, or none beside them a block of what is known that is to be copied.
  // NOT_FOUND: there is no lease to share with, or fewer than least_known_tokens are known. Rows that a window hides
  // take memory all the same: blocks are of all layers.
  absl::StatusOr<LeaseId> Reserve(const LeaseRequest& request) RUNAHEAD_EXCLUDES(mu_);
  // NOT_FOUND when the lease is unknown, released or expired.
  absl::Status Renew(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // For how many tokens of prompt, and of prompt and output, it was reserved, how many of the first ones it shares with
  // leases before or after it, or were known, and how many of the prompt's are handed off, or were known. NOT_FOUND as
  // above.
  struct Size {
    int64_t prompt_tokens = 0, total_tokens = 0, shared_tokens = 0, handed_tokens = 0;
    bool grows = false;
    bool with_x = false;  // X of the prompt comes, or was known
    int64_t known_tokens = 0,
            known_answer_tokens = 0;  // with least_known_tokens; of these, those that were an answer's
  };
  absl::StatusOr<Size> SizeOf(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // Of a lease that was reserved with arriving_tokens, KV of the first `tokens` tokens comes and no more: at least the
  // prompt's, at most those. It is complete once that is there. NOT_FOUND as above. FAILED_PRECONDITION: no such
  // number, no such lease, it was said before, or bytes are under way still.
  absl::Status EndArrival(const LeaseId& lease, int64_t tokens) RUNAHEAD_EXCLUDES(mu_);
  // Rows of KV of the first `tokens` tokens, at least 1, that the lease began with (least_known_tokens), where they
  // were kept or, once they were copied, its own. In layers with windows those may be absent that nobody sees behind
  // what was known. NOT_FOUND as above. OUT_OF_RANGE: it began with fewer, or was parked.
  absl::StatusOr<Lent> LendKnown(const LeaseId& lease, int64_t tokens) RUNAHEAD_EXCLUDES(mu_);
  // Ends the lease; idempotent. An incomplete lease's Complete event fires CANCELLED. Open sequences and writes keep
  // the memory until they end.
  void Release(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // What is reserved from now on belongs to `epoch` of the worker. All leases of before end, as if released, and are
  // unknown from now on; open sequences and writes keep their memory until they end. Nothing is kept of any sequence.
  void BeginEpoch(uint32_t epoch) RUNAHEAD_EXCLUDES(mu_);
  uint32_t epoch() const RUNAHEAD_EXCLUDES(mu_);
  // Ends the leases whose time is over and that nothing holds; called by a timer (see LeaseReaper), and by Reserve when
  // it finds no room. Returns how many expired.
  int ReapExpired() RUNAHEAD_EXCLUDES(mu_);
  // `freed` runs from now on whenever memory becomes free, whoever gives it back: under the store's lock, so it is
  // short and does not call the store. One at a time; null: none, and once this returns the one before runs no more.
  void OnFreed(std::function<void()> freed) RUNAHEAD_EXCLUDES(mu_);

  // NOT_FOUND: no such lease (or dead). OUT_OF_RANGE: layer or tokens do not fit what comes for the lease, some of the
  // tokens are shared and others have yet to come, or the lease takes nothing of the kind. ABORTED: overlapping write
  // under way; try again when it has ended.
  absl::StatusOr<Write> BeginWrite(const LeaseId& lease, int64_t layer, int64_t begin, int64_t end,
                                   SliceKind kind = SliceKind::kKv) RUNAHEAD_EXCLUDES(mu_);
  // Fires OK when every layer covers what of the prompt (or of what EndArrival said) decode sees there, in every kind
  // of the lease, CANCELLED when the lease is released before. NOT_FOUND at once when unknown or dead. From here on the
  // lease does not expire: who asked opens it, or releases it.
  Event Complete(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // NOT_FOUND when unknown or dead, FAILED_PRECONDITION while incomplete, or when opened already.
  absl::StatusOr<Sequence> Open(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);

  // Of sequences nothing is kept any more that was kept before, of all or those of one salt. Leases that began with it
  // have what they began with, and what runs is kept anew as it goes on. Returns how much less memory is kept that no
  // lease has.
  int64_t Forget(std::optional<absl::string_view> salt) RUNAHEAD_EXCLUDES(mu_);
  // What was kept in this epoch, had to go for leases and is not kept now: EvictionNews::Since of `serial` and `most`.
  // What Forget forgot is not among it, for its caller knows.
  EvictionNews::Some EvictedSince(uint64_t serial, size_t most) const RUNAHEAD_EXCLUDES(mu_);

  // Where blocks lie, in memory of the tier. Never changes.
  const KvArena& arena() const { return arena_; }
  // X of the same tokens under the same numbers; null where the store keeps none.
  const KvArena* x_arena() const { return x_arena_.has_value() ? &*x_arena_ : nullptr; }
  // Whether KV of sequences that ended can stay (Sequence::Keep), and X beside it, as the store has them. Rows that it
  // quantises are final once they are there, each by itself: a block of them is shared, and a begun one copied, as any.
  bool keeps() const { return options_.keeps; }

  struct Stats {
    int64_t capacity_bytes = 0;
    int64_t used_bytes = 0;      // of living leases, and of dead ones that are still pinned; what is shared counts once
    int64_t promised_bytes = 0;  // used ones, and those promised beside them; at most capacity_bytes
    int64_t growable_bytes = 0;  // what a new lease that grows could be given and promised
    int64_t leases = 0;          // living ones
    int64_t expired = 0;         // since the start
    // Of KV and of X, as they arrive, since the start: what leases were reserved for, and what came for them.
    struct Handoff {
      int64_t expected_bytes = 0, received_bytes = 0;
    };
    Handoff kv, x;
    int64_t kept_bytes = 0;     // of sequences that ended, and of no lease; not in used_bytes
    int64_t evicted_bytes = 0;  // of these, given to leases, since the start
  };
  Stats stats() const RUNAHEAD_EXCLUDES(mu_);
  const KvStoreOptions& options() const { return options_; }

 private:
  KvStore(const KvStoreOptions& options, BlockPool pool, std::optional<KvArena> x_arena, ArrivalBuffers bounce,
          Clock& clock);
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  // What a lease begins with, to all of which it has a reference.
  struct KnownPart {
    int64_t tokens = 0;                       // 0: it begins with nothing
    std::vector<int32_t> blocks = {};         // the whole ones
    std::optional<int32_t> copied_from = {};  // the begun one
    std::vector<bool> of_answer = {};         // of each token
    int64_t hole = 0;                         // as Beginnings::Hit's
    bool has_x = false;                       // likewise
  };

  // Of rows that arrive.
  int64_t RowBytes(SliceKind kind) const;
  // How many tokens the query at `position`, the first that is computed here, does not see, by layer.
  std::vector<int64_t> HiddenOf(int64_t position) const;
  // INVALID_ARGUMENT where the lease cannot be complete with as many.
  absl::Status CheckHandedTokens(const LeaseRequest& request) const;
  absl::Status CheckArrivingTokens(const LeaseRequest& request) const;
  static absl::Status CheckKnownTokens(const LeaseRequest& request);
  // INVALID_ARGUMENT and OUT_OF_RANGE as Reserve's.
  absl::Status CheckRequest(const LeaseRequest& request) const;
  Stats::Handoff& HandoffOf(SliceKind kind) RUNAHEAD_REQUIRES(mu_);
  // Of a block in all layers, X included.
  int64_t BlockBytes() const;
  // Blocks that a new lease can have, and be promised; may be negative.
  int64_t RoomForNew(bool grows) const RUNAHEAD_REQUIRES(mu_);
  // RESOURCE_EXHAUSTED where a new lease cannot have so many.
  absl::Status CheckRoom(int64_t blocks, bool grows) const RUNAHEAD_REQUIRES(mu_);
  // Of a request for what is known, in a lease of `blocks` blocks for which there is room. NOT_FOUND: too little is
  // known. RESOURCE_EXHAUSTED: there is none now. OUT_OF_RANGE: enough is known, and there never is.
  absl::StatusOr<KnownPart> HoldKnown(const LeaseRequest& request, int64_t blocks, bool grows) RUNAHEAD_REQUIRES(mu_);
  // At most as many as are free. What was kept and used longest ago goes for them.
  std::vector<int32_t> TakeBlocks(int64_t count) RUNAHEAD_REQUIRES(mu_);
  void ForgetKept() RUNAHEAD_REQUIRES(mu_);
  // Of a lease that begins with `known`, of whose prompt the first `handed` tokens come or are known.
  int64_t HoleOf(const KnownPart& known, int64_t handed) const;
  void KeepLease(uint64_t lease, absl::Span<const int32_t> ids) RUNAHEAD_EXCLUDES(mu_);
  void EndCopies(uint64_t lease) RUNAHEAD_EXCLUDES(mu_);
  // All of the lease's blocks afterwards.
  absl::StatusOr<std::vector<int32_t>> GrowLease(uint64_t lease, int64_t tokens, int64_t leave) RUNAHEAD_EXCLUDES(mu_);
  void ParkLease(uint64_t lease, int64_t tokens) RUNAHEAD_EXCLUDES(mu_);
  void LendBlocks(absl::Span<const int32_t> blocks) RUNAHEAD_EXCLUDES(mu_);
  void EndLending(absl::Span<const int32_t> blocks) RUNAHEAD_EXCLUDES(mu_);
  // It counts for at least `tokens` tokens, and is promised what of that it does not have.
  void Count(KvLease& lease, int64_t tokens) RUNAHEAD_REQUIRES(mu_);
  void GiveBack(absl::Span<const int32_t> blocks) RUNAHEAD_REQUIRES(mu_);
  int Reap() RUNAHEAD_REQUIRES(mu_);
  // Gives the blocks of ended leases back. The events to fire once the lock is released.
  std::vector<EventSource> ReturnBlocks(const std::vector<LeaseTable::Ending>& endings) RUNAHEAD_REQUIRES(mu_);
  // `came`: OK when the rows hold their bytes. NOT_FOUND when the lease died meanwhile, else `came`.
  absl::Status EndWrite(uint64_t lease, uint64_t write, const absl::Status& came) RUNAHEAD_EXCLUDES(mu_);
  void CloseSequence(uint64_t lease) RUNAHEAD_EXCLUDES(mu_);

  const KvStoreOptions options_;
  const KvArena arena_;  // the pool's, for all threads
  const std::optional<KvArena> x_arena_;
  ArrivalBuffers bounce_;
  mutable Mutex mu_;
  BlockPool pool_ RUNAHEAD_GUARDED_BY(mu_);
  LeaseTable leases_ RUNAHEAD_GUARDED_BY(mu_);
  Beginnings kept_ RUNAHEAD_GUARDED_BY(mu_);
  EvictionNews news_ RUNAHEAD_GUARDED_BY(mu_);
  int64_t evicted_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // blocks
  Stats::Handoff handed_kv_ RUNAHEAD_GUARDED_BY(mu_), handed_x_ RUNAHEAD_GUARDED_BY(mu_);
  std::function<void()> freed_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
