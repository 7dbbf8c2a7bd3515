// What the workers of a pool have in common. Pure: time is an argument.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"

namespace runahead {

// A choice without a majority waits so long for more answers, from the first one on: workers that were started together
// answer within it, unless they load a large model.
inline constexpr absl::Duration kChoiceTimeout = absl::Seconds(10);

// By which weights KV is computed, in what, and how it lies in memory. It goes from worker to worker as it is, so all
// must have the same; what device a worker computes on is its own affair.
struct PoolTerms {
  std::string weights_fingerprint;
  std::string compute_dtype;
  std::string kv_dtype;
  int layers = 0;
  int kv_row_bytes = 0;     // K and V of one token in one layer
  int kv_block_tokens = 0;  // of a block in a decode worker's store
  int kv_heads = 0;
  int head_dim = 0;  // elements
  std::string kv_row_order;
  std::string x_form;   // how X is kept and handed off
  int x_row_bytes = 0;  // X of one token in one layer

  friend bool operator==(const PoolTerms&, const PoolTerms&) = default;
};

// Chooses the terms by vote: what a strict majority of the *listed* workers has (less those that cannot join whatever
// is chosen), as soon as there is one, whether or not the others have answered; else, kChoiceTimeout after the first
// answer, what most of those have that have answered, of several the one whose first worker stands first in the list.
// So no single worker defines the pool by being quick. The choice stays until no worker with these terms is left. Not
// thread-safe.
class PoolChoice {
 public:
  // `listed`: how many workers the list has. They are known by their index in it.
  explicit PoolChoice(int listed) : listed_(listed) {}
  void SetListed(int listed) { listed_ = listed; }

  // The worker may join, but for its terms. What it said before is forgotten.
  void Answered(int worker, PoolTerms terms, absl::Time now);
  // The worker cannot join, whatever is chosen.
  void Refused(int worker) { refused_.insert(worker); }
  // It is not there any more, or does not have what was chosen: it has no vote.
  void Gone(int worker, absl::Time now);

  // The choice; nothing while it is open. It stands until the next Gone.
  const PoolTerms* Choose(absl::Time now);
  // When Choose will know at the latest; the infinite future while nobody has answered.
  absl::Time choice_due() const { return first_answer_ + kChoiceTimeout; }

 private:
  int listed_;
  std::map<int, PoolTerms> answers_;
  std::set<int> refused_;                             // until they answer again, started otherwise
  absl::Time first_answer_ = absl::InfiniteFuture();  // since the choice is open
  std::optional<PoolTerms> chosen_;
};

}  // namespace runahead
