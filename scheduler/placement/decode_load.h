// What a decode worker has to give: by what it said last, and by what the router has promised since. Pure: time is an
// argument.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"

namespace runahead {

// As a worker says it in its pongs.
struct DecodeReport {
  int64_t slots_used = 0;          // leases: each takes a slot from its grant on
  int64_t running = 0;             // of them, those whose sequences have been in a step, and are not parked
  int64_t parked = 0;              // of them, those whose sequences wait for memory
  int64_t used_tokens = 0;         // of KV memory, in whole blocks; with what is expected that leases will need besides
  int64_t growable_tokens = 0;     // what leases can still be given
  absl::Duration step;             // what a step takes
  std::vector<int64_t> remaining;  // tokens that running sequences have left at most, rising; those that end first
};

// For one thread at a time. A lease is promised from Asked on, and counts until Returned. Where it is not certain
// whether a report counts it, it counts twice until the next report: a slot then stays free for half a second, and no
// sequence waits for one.
class DecodeLoad {
 public:
  // `reports`: the worker says what it has. Of one that does not, the router's own count stands for it.
  explicit DecodeLoad(bool reports = false) : reports_(reports) {}

  void Asked() { ++asked_; }
  void Answered() { --asked_; }
  // The worker, which holds `capacity` tokens, has granted a lease that counts so many, or is given it back: one that
  // has grown beyond that gives more back, as the next report says.
  void Taken(int64_t tokens, int64_t capacity, absl::Time now);
  void Returned(int64_t tokens);
  // It answers a question that was asked at `asked`.
  void Reported(DecodeReport report, absl::Time asked, absl::Time now);
  // It refused a lease that counts so many tokens, of `capacity`: less is free than is known here.
  void Refused(int64_t tokens, int64_t capacity);

  int64_t leases() const;  // without those that are asked for
  int64_t asked() const { return asked_; }
  bool idle() const { return asked_ == 0 && given_ == 0; }
  int64_t running() const { return report_.running; }
  int64_t parked() const { return report_.parked; }
  // Of KV memory of `capacity` tokens.
  int64_t reserved_tokens(int64_t capacity) const;
  // When sequences that run now will have ended at the latest, in seconds from `now`, rising.
  std::vector<double> Ends(absl::Time now) const;

 private:
  struct Lease {
    int64_t tokens = 0;
    absl::Time taken;
  };

  bool reports_;
  bool reported_ = false;
  int64_t asked_ = 0;
  int64_t given_ = 0, given_tokens_ = 0;  // leases of the router's, and their tokens
  int64_t unseen_tokens_ = 0;             // taken too, as refusals tell
  DecodeReport report_;
  absl::Time reported_at_;
  std::deque<Lease> since_;  // taken since the last report was asked for
  int64_t since_tokens_ = 0;
  int64_t returned_ = 0, returned_tokens_ = 0;  // since the last report came
};

}  // namespace runahead
