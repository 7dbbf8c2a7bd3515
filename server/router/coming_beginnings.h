// Prompts that are computed now, and of which a decode worker will have KV: a request that begins alike may wait for
// that, rather than have all of it computed again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/mutex.h"
#include "scheduler/placement/continuation_choice.h"
#include "scheduler/placement/decode_choice.h"
#include "server/router/cancel_token.h"
#include "server/router/live_worker.h"

namespace runahead {

// Thread-safe. Prompts that are computed stand in the order of their ids, where those that begin alike are neighbours:
// its lock is held for as long as it takes to compare a prompt with as many as the logarithm of all, and to count those
// that have as much in common with it.
class ComingBeginnings {
  struct Prompt;
  struct Key;
  struct Entry;
  using Entries = std::multimap<Key, Entry>;

 public:
  // Where a prompt goes that is computed.
  struct Destination {
    std::shared_ptr<const LiveWorker> worker;  // null: nobody keeps it
    KnownWays ways;                            // that the worker leaves open
    DecodeNeed need;                           // of the request whose prompt it is
    bool reserved = false;                     // the request has its lease there
    bool returned = false;                     // that is given back once the prompt is there
  };

  // What a prompt has in common with one that is computed.
  struct Alike {
    int64_t tokens = 0;    // from the first on
    absl::Time ready;      // when KV of it is expected on a decode worker
    absl::Duration takes;  // until then, when that was expected; 0: nobody knows
    int64_t waiting = 0;   // requests that wait for it already
    Destination to;
  };

  // A prompt that is computed, while this lives. Its ids must live as long.
  class Computed {
   public:
    Computed(Entries::iterator entry, ComingBeginnings& all) : entry_(entry), all_(all) {}
    ~Computed();
    Computed(const Computed&) = delete;
    Computed& operator=(const Computed&) = delete;

    // The request has a lease on the worker, which leaves these ways open. Whoever waits looks again, unless that is
    // what was expected.
    void GoesTo(const std::shared_ptr<const LiveWorker>& worker, KnownWays ways);

   private:
    const Entries::iterator entry_;  // what it leads to is guarded by the lock of all_
    ComingBeginnings& all_;
  };

  // One that waits for such a prompt, while this lives.
  class Awaited {
   public:
    Awaited(std::shared_ptr<Prompt> prompt, ComingBeginnings& all) : prompt_(std::move(prompt)), all_(all) {}
    ~Awaited();
    Awaited(const Awaited&) = delete;
    Awaited& operator=(const Awaited&) = delete;

    // Is cancelled, with no error's meaning, when the prompt is not computed any more, for it is there or given up, or
    // when it goes elsewhere than was expected.
    CancelToken& over() const;

   private:
    const std::shared_ptr<Prompt> prompt_;
    ComingBeginnings& all_;
  };

  // One of the two.
  struct Entered {
    std::unique_ptr<Awaited> awaited;
    std::unique_ptr<Computed> computed;
  };
  // A prompt of these ids, of `salt`, is to be computed from `now` on, which `takes` so long until KV of it is there,
  // 0 where nobody knows. Where one is computed that begins alike, and waiting for it `pays`, it waits for that
  // instead; else others may wait for it. `pays` is called under the lock, of the one that has the most in common, and
  // kLeastKnownTokens at least.
  Entered Enter(absl::string_view salt, absl::Span<const int32_t> ids, absl::Time now, absl::Duration takes,
                Destination to, absl::FunctionRef<bool(const Alike&)> pays) RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Prompt {
    absl::Time ready;
    absl::Duration takes;
    Destination to;       // under mu_
    int64_t waiting = 0;  // likewise
    CancelToken over;
  };
  struct Key {
    std::string salt;
    absl::Span<const int32_t> ids;  // read under mu_, while it is in computed_
    bool operator<(const Key& other) const;
  };
  struct Entry {
    std::shared_ptr<Prompt> prompt;
    uint64_t number;                    // counts up
    int64_t common_with_neighbour = 0;  // tokens that it has in common with the entry before it
  };
  struct Best {
    std::shared_ptr<Prompt> prompt;  // null: none has kLeastKnownTokens in common
    int64_t common = 0;
  };

  static int64_t TokensInCommon(const Key& a, const Key& b);
  // Of those that have the most in common with `key`, the newest. `next` is the first entry behind it.
  Best FindBest(const Key& key, Entries::iterator next) RUNAHEAD_REQUIRES(mu_);
  Entries::iterator Add(Key key, Entries::iterator next, std::shared_ptr<Prompt> prompt) RUNAHEAD_REQUIRES(mu_);
  void Remove(Entries::iterator entry) RUNAHEAD_REQUIRES(mu_);

  Mutex mu_;
  Entries computed_ RUNAHEAD_GUARDED_BY(mu_);  // equal ones by age
  uint64_t entered_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
