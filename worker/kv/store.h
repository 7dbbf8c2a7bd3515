// The decode side's KV store: blocks of 256 tokens a layer in one host arena, handed out by leases.
#pragma once

#include <cstdint>
#include <functional>
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

namespace runahead {

inline constexpr int64_t kKvBlockTokens = 256;
inline constexpr absl::Duration kLeaseLife = absl::Seconds(30);

// Never reused; unguessable, for the incarnation is random.
struct LeaseId {
  uint64_t incarnation = 0;
  uint64_t number = 0;
  friend bool operator==(const LeaseId&, const LeaseId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const LeaseId& id) {
    return H::combine(std::move(h), id.incarnation, id.number);
  }
};

struct KvStoreOptions {
  int64_t layers = 0;
  int64_t row_bytes = 0;        // K and V of one token in one layer
  int64_t capacity_tokens = 0;  // rounded down to whole blocks
  uint64_t incarnation = 0;
  absl::Duration lease_life = kLeaseLife;
};

// Thread-safe. A lease lives `lease_life` past the last of reserve, accepted slice and renewal; an open decode holds
// it; memory returns when the lease is dead (released or expired) and nothing pins it.
class KvStore {
 public:
  // Rows of one layer pinned for writing: the lease's memory cannot be given away while this lives. Movable.
  class Write {
   public:
    Write(Write&&) noexcept;
    Write& operator=(Write&&) noexcept;
    ~Write();  // without Commit the rows stay uncovered
    // Destination of the slice's bytes in order, cut at block borders.
    const std::vector<BufferRef>& destination() const { return destination_; }
    // Everything was covered before: the bytes need not be written (or sent) again.
    bool already_covered() const { return already_covered_; }
    // The bytes are in: marks [begin, end) of the layer covered and renews the lease. NOT_FOUND when the lease died
    // meanwhile.
    absl::Status Commit();

   private:
    friend class KvStore;
    Write() = default;
    KvStore* store_ = nullptr;
    LeaseId lease_;
    int64_t layer_ = 0, begin_ = 0, end_ = 0;
    bool already_covered_ = false;
    std::vector<BufferRef> destination_;
  };

  // A lease held open by decode: it does not expire, and its rows may be read and appended. Released on destruction.
  class Sequence {
   public:
    Sequence(Sequence&&) noexcept;
    Sequence& operator=(Sequence&&) noexcept;
    ~Sequence();
    // KV of a layer as spans, in token order, over the lease's whole reserved length (prompt + max_tokens, rounded up).
    const std::vector<KvSpan>& Spans(int64_t layer) const { return spans_[layer]; }
    // The one row of token `position` in `layer`.
    KvSpan Row(int64_t layer, int64_t position) const;
    int64_t prompt_tokens() const { return prompt_tokens_; }
    int64_t total_tokens() const { return total_tokens_; }

   private:
    friend class KvStore;
    Sequence() = default;
    KvStore* store_ = nullptr;
    LeaseId lease_;
    int64_t prompt_tokens_ = 0, total_tokens_ = 0;
    std::vector<std::vector<KvSpan>> spans_;
  };

  // Allocates the arena from `device` (host memory). `clock` outlives the store.
  static absl::StatusOr<std::unique_ptr<KvStore>> Create(const KvStoreOptions& options, Device& device, Clock& clock);
  ~KvStore();

  // Memory for prompt + output tokens, all at once. RESOURCE_EXHAUSTED: full now; OUT_OF_RANGE, naming both sizes: no
  // empty store could hold it.
  absl::StatusOr<LeaseId> Reserve(int64_t prompt_tokens, int64_t total_tokens) RUNAHEAD_EXCLUDES(mu_);
  absl::Status Renew(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // Ends the lease; idempotent. An incomplete lease's Complete event fires CANCELLED.
  void Release(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // Frees what has expired and unpinned; called by a timer (see LeaseReaper). Returns how many leases expired.
  int ReapExpired() RUNAHEAD_EXCLUDES(mu_);

  // NOT_FOUND: no such lease (or dead). OUT_OF_RANGE: layer or tokens do not fit the prompt. ABORTED: overlapping
  // write under way.
  absl::StatusOr<Write> BeginWrite(const LeaseId& lease, int64_t layer, int64_t begin, int64_t end)
      RUNAHEAD_EXCLUDES(mu_);
  // Fires OK when every layer covers the prompt, CANCELLED when the lease ends before. NOT_FOUND at once when unknown.
  Event Complete(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // FAILED_PRECONDITION while incomplete, or when opened already.
  absl::StatusOr<Sequence> Open(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);

  struct Stats {
    int64_t capacity_bytes = 0, used_bytes = 0, leases = 0, expired = 0;
  };
  Stats stats() const RUNAHEAD_EXCLUDES(mu_);
  const KvStoreOptions& options() const { return options_; }
