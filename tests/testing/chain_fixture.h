// A prefill chain in one process: stages over loopback edges that share one model, and a hand-off that keeps what it
// gets (through pinned memory where the device's is not the host's). Where the host can write the stages' memory it is
// full of NaN before the first job: who reads what was never written is seen. Loopback moves bytes as the host's: it is
// for the CPU's device and the emulated one.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kernels/base/mutex.h"
#include "tests/testing/await.h"
#include "tests/testing/expected_run.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/loopback.h"
#include "tests/testing/model_fixture.h"
#include "worker/prefill/stage.h"

namespace runahead {

// Accepts every slice, at once or (blocked) not before Unblock, unless told to refuse.
class KeepingHandoff : public HandoffSender {
 public:
  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) override;
  void Cancel(const LeaseId& lease) override;
  void Block() { Block({SliceKind::kKv, SliceKind::kX}); }
  void Block(std::set<SliceKind> kinds);
  void Unblock();
  void Refuse(const absl::Status& status);  // those that are held; all later ones are accepted
  // From now on `next`, which outlives the chain, decides about every slice; what was handed off is kept as before.
  void PassTo(HandoffSender& next) { next_ = &next; }
  // Bytes of tokens [begin, end) of a layer; fails the test where slices do not cover them exactly once.
  std::string Layer(const LeaseId& lease, int64_t layer, int64_t begin, int64_t end, int64_t row_bytes,
                    SliceKind kind = SliceKind::kKv) const;
  // Of all slices of a kind.
  int64_t Bytes(SliceKind kind) const;

 private:
  struct Held {
    LeaseId lease;
    EventSource source;
  };
  HandoffSender* next_ = nullptr;
  mutable Mutex mu_;
  std::set<SliceKind> blocked_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<Held> held_ RUNAHEAD_GUARDED_BY(mu_);
  // (lease number, layer, kind) -> begin -> bytes
  std::map<std::tuple<uint64_t, int64_t, SliceKind>, std::map<int64_t, std::string>> slices_ RUNAHEAD_GUARDED_BY(mu_);
};

// What a job reported.
struct JobNews {
  std::optional<Sampled> first_token;
  std::vector<TokenLogprobPairs> scores;  // of the tokens behind the part's first one, or of the next part's first
  std::optional<JobEnd> done;
  JobTimes times;
};

// Keeps and awaits the news of all jobs on one stage.
class NewsBoard : public PrefillObserver {
 public:
  void OnFirstToken(const PrefillJob& job, const Sampled& token, double, double) override;
  void OnPromptScores(const PrefillJob& job, int64_t index, const std::vector<TokenLogprobPairs>& scores) override;
  void OnDone(const PrefillJob& job, const JobEnd& end, const JobTimes& times) override;
  Sampled AwaitFirstToken(JobId job);
  absl::Status AwaitDone(JobId job) { return AwaitEnd(job).status; }
  JobEnd AwaitEnd(JobId job);
  bool done(JobId job) const;
  std::vector<TokenLogprobPairs> scores(JobId job) const;  // that have come
  void AwaitScores(JobId job, size_t count);               // so many, or more
  JobTimes times(JobId job) const;                         // of a job that is done

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::map<JobId, JobNews> news_ RUNAHEAD_GUARDED_BY(mu_);
};

struct TraceEntry {
  JobId job;
  int64_t layer;
  TracePoint point;
};

class KeepingTrace : public TraceSink {
 public:
  void Add(JobId job, int64_t layer, TracePoint point) override;
  // Waits until the entry is there, and returns its index in the order of things.
  size_t Await(JobId job, int64_t layer, TracePoint point);
  bool Has(JobId job, int64_t layer, TracePoint point) const;
  // Who comes to `point` of `job`, or of any, and of any layer waits there until Release; who is held elsewhere goes
  // on.
  void HoldAt(TracePoint point, std::optional<JobId> job = std::nullopt);
  void Release();

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<TraceEntry> entries_ RUNAHEAD_GUARDED_BY(mu_);
  std::optional<TracePoint> held_ RUNAHEAD_GUARDED_BY(mu_);
  std::optional<JobId> held_job_ RUNAHEAD_GUARDED_BY(mu_);  // none: of any
};

// Of how many prompts each pass of a stage is.
class KeepingPasses {
 public:
  void Add(int64_t prompts) {
    MutexLock lock(mu_);
    passes_.push_back(prompts);
  }
  std::vector<int64_t> all() const {
    MutexLock lock(mu_);
    return passes_;
  }

 private:
  mutable Mutex mu_;
  std::vector<int64_t> passes_ RUNAHEAD_GUARDED_BY(mu_);
};

// A meter on a clock of its own. An answer that comes late holds the meter longer than the chain lives: the clock is
// there as long.
struct ClockedMeter {
  testing::FakeClock clock;
  ProgressMeter meter{clock};
};

struct ChainMember {
  const std::shared_ptr<ClockedMeter> clocked = std::make_shared<ClockedMeter>();
  testing::FakeClock& clock = clocked->clock;
  const std::shared_ptr<ProgressMeter> progress{clocked, &clocked->meter};
  std::unique_ptr<EdgeFactory> edges;
  std::shared_ptr<Edge> predecessor, successor;
  NewsBoard news;
  KeepingTrace trace;
  KeepingPasses passes;
  std::atomic<int64_t> memory = 0;  // bytes that its jobs hold now
  std::unique_ptr<PrefillStage> stage;
};

class TestChain {
 public:
  // `slots`: layer buffers a job gets for the longest prompt; 0: all layers.
  TestChain(const LoadedModel& loaded, int width, int64_t max_tokens, int64_t slots = 0,
            LoopbackNetwork::Delivery delivery = LoopbackNetwork::Delivery::kImmediate);
  // Over other edges than the loopback's, in the order of the line: then there is no network(), and live_edge_jobs() is
  // the caller's to know.
  TestChain(const LoadedModel& loaded, std::vector<std::unique_ptr<EdgeFactory>> edges, int64_t max_tokens);
  ~TestChain();

  // Starts a job on members [first, first + parts): `bounds` as in PrefillJob, ids of the whole prompt.
  void Start(JobId job, int first, const std::vector<int64_t>& bounds, const std::vector<int32_t>& ids,
             const SamplingOptions& sampling = {}, bool with_lease = true, absl::Time deadline = absl::InfiniteFuture(),
             Schedule schedule = Schedule::kKvr);
  // Each token of the part is expected to take a second, and a quarter of them may overtake it.
  PrefillJob JobOf(JobId job, int first, int part, const std::vector<int64_t>& bounds, const std::vector<int32_t>& ids,
                   const SamplingOptions& sampling, bool with_lease, absl::Time deadline,
                   Schedule schedule = Schedule::kKvr);

  static PeerId Peer(int index) { return {"member-" + std::to_string(index), static_cast<uint64_t>(index) + 1}; }
  static LeaseId Lease(JobId job) { return {99, job}; }
  ChainMember& member(int index) { return *members_[index]; }
  int width() const { return static_cast<int>(members_.size()); }
  KeepingHandoff& handoff() { return handoff_; }
  LoopbackNetwork& network() { return *network_; }
  // Has all frames delivered that come, until `condition()`, which is `what` in the words of a failure.
  template <typename Condition>
  [[nodiscard]] ::testing::AssertionResult DeliverUntil(std::string_view what, Condition condition) {
    return testing::Await(what, [&] {
      if (condition()) return true;
      network_->DeliverAll();
      return condition();
    });
  }
  // Until all of `members` are done with the job.
  [[nodiscard]] ::testing::AssertionResult DeliverUntilDone(JobId job, const std::vector<int>& members);
  // Jobs that left state on any edge.
  size_t live_edge_jobs() const;

 private:
  void Assemble(const LoadedModel& loaded, std::vector<std::unique_ptr<EdgeFactory>> edges, int64_t max_tokens,
                int64_t slots);

  const std::shared_ptr<LoopbackNetwork> network_;
  KeepingHandoff handoff_;
  std::unique_ptr<HandoffSender> staged_handoff_;  // before handoff_, where the host cannot read the device's memory
  std::vector<std::unique_ptr<ChainMember>> members_;
};

// What a chain made of a prompt: the first token with the logprobs of the whole vocabulary, and all KV that was handed
// off, by layer.
struct WholeRun {
  Sampled token;
  std::vector<std::string> kv;  // bytes of a layer each
  std::vector<int64_t> begins;  // of each layer: the first token that was handed off, which its window leaves to decode
};
// As many logprobs as a device gives, of a small model those of the whole vocabulary: comparing them is comparing
// logits.
SamplingOptions EveryLogprob(const LoadedModel& loaded);
// What becomes of a job that was started on members [first, ...) with EveryLogprob; expects it to end well at all.
WholeRun AwaitWhole(const LoadedModel& loaded, TestChain& chain, JobId job, int first,
                    const std::vector<int64_t>& bounds);
// Runs a job on the chain's first members.
WholeRun RunWhole(const LoadedModel& loaded, TestChain& chain, JobId job, const std::vector<int64_t>& bounds,
                  const std::vector<int32_t>& ids, Schedule schedule = Schedule::kKvr);
// The rule of f32 (exactness.h) for logits, token, K and V. KV that was handed off from behind a prefix is compared
// from there.
void ExpectRun(const WholeRun& actual, const ExpectedRun& expected);

}  // namespace runahead
