// Who may use which blocks, and for how long: leases, their ids and epochs, what holds them. Knows nothing of bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/event.h"
#include "server/base/clock.h"
#include "worker/kv/arrival.h"

namespace runahead {

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

// How messages name a lease.
std::string LeaseName(const LeaseId& id);

// A dead lease stays, without its arrival mattering to anyone, until its last pin goes.
struct KvLease {
  KvLease(int64_t prompt, int64_t total, std::vector<int32_t> its_blocks, Arrival its_arrival)
      : prompt_tokens(prompt), total_tokens(total), blocks(std::move(its_blocks)), arrival(std::move(its_arrival)) {}

  const int64_t prompt_tokens, total_tokens;
  std::vector<int32_t> blocks;  // in token order; the lease has a reference to each
  Arrival arrival;              // the table does not look at it
  EventSource completed;        // the owner fires it, outside of its lock
  bool grows = false;           // LeaseRequest::expected_tokens; set before it is added
  bool moves_in = false;        // LeaseRequest::arriving_tokens, until EndArrival; the table does not look at it
  // Of one that grows; the table does not look at these either.
  bool parked_first = false;
  bool was_parked = false;     // its memory went once
  int64_t counted_tokens = 0;  // what it is counted for: what is expected, or has turned out to be needed
  // Of what is kept of sequences that ended: what the lease began with, and what is to be kept of it.
  std::string salt;
  bool not_kept = false;
  std::vector<bool> known_answers;     // of each of the first tokens that were known: a token of an answer
  int64_t hole = 0;                    // rows of layers with windows before this token may be absent
  std::optional<int32_t> copied_from;  // a block, to which the lease has a reference: see Sequence::Copies
  // What holds it: each ends by itself when its peer or its call does.
  bool awaited = false;  // somebody waits for `completed`
  bool open = false;     // somebody decodes it; this pins its blocks, too
  int writes = 0;        // bytes under way; these pin its blocks, too
  // The table's own.
  bool dead = false;
  absl::Time expires;
  int64_t promised = 0;  // blocks, beside those that it has
};

// Not thread-safe: the owner's lock guards it. A lease lives `life` past its making and its last renewal, and as long
// as something holds it. Its blocks are to be returned when it is dead (released, expired or of an epoch before) and
// nothing pins them.
class LeaseTable {
 public:
  // `clock` outlives it.
  LeaseTable(uint64_t incarnation, absl::Duration life, Clock& clock);

  // What a lease's end leaves to its owner.
  struct Ending {
    EventSource completed;        // to be fired, where somebody may wait
    std::vector<int32_t> blocks;  // to be returned; none while something pins them
  };

  // A lease of this epoch with its life before it.
  LeaseId Add(std::unique_ptr<KvLease> lease);
  // NOT_FOUND when unknown, dead, or over though nobody has reaped it. Valid until the lease is gone.
  absl::StatusOr<KvLease*> Find(const LeaseId& id);
  // One that lives or is pinned.
  KvLease& at(uint64_t number) { return *leases_.at(number); }
  void Renew(KvLease& lease) const;
  // From now on the lease is promised so many blocks beside those that it has, until it is dead: then it is promised
  // none.
  void Promise(KvLease& lease, int64_t blocks);

  // Nothing where no such lease lives.
  std::optional<Ending> Release(const LeaseId& id);
  // Ends those whose time is over and that nothing holds. Nobody waits for their events.
  std::vector<Ending> ReapExpired();
  std::vector<Ending> EndAll();
  // Ends all; those added from now on are of `epoch`, and no other is known.
  std::vector<Ending> BeginEpoch(uint32_t epoch);

  // A write into the lease ended: one pin less. The blocks to be returned: then it is gone.
  std::vector<int32_t> EndWrite(uint64_t number);
  // Its decode ended, and the lease with it, where it still lived. The blocks to be returned: then it is gone.
  std::vector<int32_t> Close(uint64_t number);

  uint32_t epoch() const { return epoch_; }
  int64_t living() const { return living_; }
  int64_t growing() const { return growing_; }    // of the living ones, those that grow
  int64_t promised() const { return promised_; }  // blocks, to all leases together
  int64_t expired() const { return expired_; }    // since the start
  bool empty() const { return leases_.empty(); }

 private:
  bool IsExpired(const KvLease& lease) const;
  Ending Kill(uint64_t number);
  std::vector<int32_t> ForgetIfUnpinned(uint64_t number);

  const uint64_t incarnation_;
  const absl::Duration life_;
  Clock& clock_;
  uint32_t epoch_ = 0;
  int64_t living_ = 0, growing_ = 0, expired_ = 0, promised_ = 0;
  absl::flat_hash_map<uint64_t, std::unique_ptr<KvLease>> leases_;
};

}  // namespace runahead
