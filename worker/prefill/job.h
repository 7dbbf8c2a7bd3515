// One worker's part of one prefill.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/event.h"
#include "scheduler/partition/schedule.h"
#include "server/base/span_recorder.h"
#include "worker/handoff/handoff.h"
#include "worker/kv/store.h"
#include "worker/link/edge.h"
#include "worker/model/draw_rules.h"
#include "worker/model/sampling.h"

namespace runahead {

// KV of the tokens before a chain's first part (TSP has none), from elsewhere than a prefill worker: from the decode
// worker that has the job's lease. Thread-safe.
class PrefixSource {
 public:
  virtual ~PrefixSource() = default;
  // Fills `into` with the layer's rows of tokens [first, bounds[0]); fires when they are there, or with an error: then
  // nothing is written to it any more. First is above 0 where the layer's window hides what lies before it from all
  // parts.
  virtual Event Load(int64_t layer, int64_t first, BufferRef into) = 0;
  // The job has been stopped: what is being loaded, and what is asked for from now on, fires soon, with an error.
  virtual void Drop() = 0;
};

// Part `part` owns prompt tokens [bounds[part], bounds[part+1]). The part before the last one is not the tail.
struct PrefillJob {
  JobId id = 0;
  std::string request_id;
  Schedule schedule = Schedule::kKvr;
  std::vector<int64_t> bounds;  // parts + 1 rising values; the first is 0 unless there is a prefix
  int part = 0;
  bool interleave = false;            // it may overtake others that bear it: one part, no prefix
  double expected_s = 0;              // what the prompt takes, as the router expects; 0: it overtakes nobody
  double allowance_s = 0;             // what those may take together that overtake it
  std::vector<int32_t> ids;           // own tokens; for the tail all tokens of the prompt
  std::shared_ptr<Edge> predecessor;  // absent for part 0
  std::shared_ptr<Edge> successor;    // absent for the tail
  std::string predecessor_name;       // for messages
  std::string successor_name;
  std::shared_ptr<PrefixSource> prefix;  // for part 0 where bounds[0] > 0
  std::optional<LeaseId> lease;          // absent: no hand-off
  int64_t x_tokens = 0;                  // with lease: of tokens [0, x_tokens) X is handed off
  int64_t kv_from = 0;                   // with lease: KV is handed off from here on; at most x_tokens
  PeerId decode;                         // with lease
  std::string decode_name;               // for messages
  absl::Time deadline = absl::InfiniteFuture();
  // PrefillObserver hears what the tokens behind each own one were given, with so many alternatives; -1: it does not.
  // Of all parts or none: it decides what of the last layer's KV travels.
  int32_t prompt_logprobs = -1;
  int32_t next_id = 0;                            // with prompt_logprobs, but for the tail: the next part's first
  SamplingOptions sampling;                       // tail
  DrawRules rules;                                // tail
  std::shared_ptr<SpanRecorder> spans = nullptr;  // null: it is not traced

  int parts() const { return static_cast<int>(bounds.size()) - 1; }
  bool tail() const { return part + 1 == parts(); }
  int64_t begin() const { return bounds[part]; }
  int64_t end() const { return bounds[part + 1]; }
  int64_t tokens() const { return end() - begin(); }
  // Of how many of the own tokens, from begin() on, the token behind it is scored. Behind the tail's last there is
  // none.
  int64_t scored_tokens() const { return prompt_logprobs < 0 ? 0 : tokens() - (tail() ? 1 : 0); }
  // What is scored: the token behind the own one of that place.
  int32_t scored_id(int64_t place) const {
    const auto at = static_cast<size_t>(place + 1) + (ids.size() - static_cast<size_t>(tokens()));
    return at < ids.size() ? ids[at] : next_id;
  }
  // Of how many of the own tokens, from begin() on, X is handed off.
  int64_t own_x_tokens() const { return std::max<int64_t>(0, std::min(x_tokens, end()) - begin()); }
  // From where on KV of the own tokens is handed off; end(): of none.
  int64_t own_kv_from() const { return std::clamp(kv_from, begin(), end()); }
  // Tokens [0, held_tokens()) have rows in every layer's buffer: once it attends, with KV of all that the layer's
  // window leaves to be seen.
  int64_t held_tokens() const { return IsTsp(schedule) ? bounds.back() : end(); }
};

// Whose failure it was that ended a job on this worker.
enum class JobCause {
  kOwn,  // this worker's
  // A neighbour dropped the job, or the edge to it is dead: what happened, happened elsewhere; or, with DATA_LOSS, that
  // edge never brought a frame whole.
  kPeer,
  kRouter,  // cancelled, out of time, or what no worker could have run
  kDecode,  // the decode worker is gone, did not accept a slice, or did not give the prefix
};

struct JobEnd {
  absl::Status status;
  JobCause cause = JobCause::kOwn;  // of a failure
};

// Ends a job early. Copies share the same state. Thread-safe. The first reason is the job's: what it brings down with
// it, on this worker and on others, fails only after that.
class JobStop {
 public:
  JobStop();
  // `why` is not OK. Nothing happens when it has fired already.
  void Fire(JobCause cause, const absl::Status& why) const;
  // Fires with the reason's status.
  Event event() const;
  // The reason; nothing while it has not fired.
  std::optional<JobEnd> reason() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// INVALID_ARGUMENT naming what does not fit: bounds, part, ids, neighbours, x_tokens, kv_from, prompt_logprobs,
// next_id.
absl::Status CheckJob(const PrefillJob& job, int64_t context_length, int64_t vocab);

}  // namespace runahead
