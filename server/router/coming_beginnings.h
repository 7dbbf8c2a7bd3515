// Prompts that are computed now, and of which a decode worker will have KV: a request that begins alike may wait for
// that, rather than have all of it computed again.
#pragma once

#include <cstdint>
#include <list>
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

// Thread-safe. Its lock is held for as long as it takes to compare a prompt with those that are computed.
class ComingBeginnings {
  struct Prompt;

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
    explicit Computed(std::shared_ptr<Prompt> prompt, ComingBeginnings& all) : prompt_(std::move(prompt)), all_(all) {}
    ~Computed();
    Computed(const Computed&) = delete;
    Computed& operator=(const Computed&) = delete;

    // The request has a lease on the worker, which leaves these ways open. Whoever waits looks again, unless that is
    // what was expected.
    void GoesTo(const std::shared_ptr<const LiveWorker>& worker, KnownWays ways);

   private:
    std::shared_ptr<Prompt> prompt_;
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
    std::string salt;
    absl::Span<const int32_t> ids;  // read under mu_, while it is in computed_
    absl::Time ready;
    absl::Duration takes;
    Destination to;       // under mu_
    int64_t waiting = 0;  // likewise
    CancelToken over;
  };

  Mutex mu_;
  std::list<std::shared_ptr<Prompt>> computed_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
