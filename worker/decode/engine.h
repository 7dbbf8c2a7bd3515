// Continuous batching: a loop in which sequences join and leave at step boundaries, one forward pass a step.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "scheduler/batching/step_plan.h"
#include "server/base/clock.h"
#include "server/base/progress_meter.h"
#include "worker/decode/sequence.h"
#include "worker/decode/step_loop.h"
#include "worker/kv/store.h"
#include "worker/model/model.h"
#include "worker/model/token_sampler.h"

namespace runahead {

struct DecodeStep {
  int64_t batch_size = 0;
  absl::Duration took;  // forward pass and sampling
};

struct DecodeEngineOptions {
  int64_t max_batch = 32;                               // sequences in one step
  std::function<void(const DecodeStep&)> on_step = {};  // on the engine's thread, before the step's tokens go out
  // Makes what runs steps, on the engine's stream; without it that is a DecodeLoop.
  std::function<absl::StatusOr<std::unique_ptr<StepLoop>>(Stream&)> make_loop = {};
  // Of the engine's thread and what it waits for on the device; null: one of its own.
  std::shared_ptr<ProgressMeter> progress = nullptr;
};

// Thread-safe. Device, store and clock outlive the engine. Destruction ends every sequence with UNAVAILABLE. What fails
// for one sequence ends that one; those beside it give the tokens that they would have given without it.
class DecodeEngine {
 public:
  // INVALID_ARGUMENT when model and store do not agree, or the options make no sense; RESOURCE_EXHAUSTED when the
  // device has no memory for a step.
  static absl::StatusOr<std::unique_ptr<DecodeEngine>> Create(Device& device, std::shared_ptr<const Model> model,
                                                              KvStore& store, DecodeEngineOptions options,
                                                              Clock& clock = RealClock());
  ~DecodeEngine();

  // Takes the lease over: it is given back when the sequence ends, whatever the reason. The sequence waits for the
  // lease's KV without holding up others, then joins at a step boundary. All further outcomes go to `sink`, also from
  // before Add returns. Errors here, after which the sink is not called: FAILED_PRECONDITION when the lease is decoded
  // already (its owner keeps it); INVALID_ARGUMENT when it was reserved for another prompt length or for fewer tokens,
  // and what CheckSequence and CheckTokens find (the lease is given back).
  absl::StatusOr<SequenceNumber> Add(DecodeSequence sequence, std::shared_ptr<DecodeSink> sink);

  // Whether steps may take a sequence to `tokens` tokens, of prompt and output: StepLoop::CheckTokens.
  absl::Status CheckTokens(int64_t tokens) const { return loop_->CheckTokens(tokens); }

  // Ends a sequence with CANCELLED at the next step boundary; nothing happens when it has ended already.
  void Cancel(SequenceNumber number);
  // The same for the sequence that has this lease; false when there is none.
  bool CancelLease(const LeaseId& lease);

 private:
  struct Active;
  struct Inbox;

  DecodeEngine(Device& device, std::shared_ptr<const Model> model, KvStore& store, DecodeEngineOptions options,
               Clock& clock, std::unique_ptr<TokenSampler> sampler, std::unique_ptr<Stream> stream,
               std::unique_ptr<StepLoop> loop);

  // The rest runs on the loop's thread.
  void Run();
  void Admit(SequenceNumber number, const absl::Status& kv_complete);
  void Join();
  void Step();
  // Runs it as a unit of progress_.
  template <typename Unit>
  void Measured(double work, const Unit& unit);
  double WorkOf(absl::Span<const SequenceNumber> rows) const;
  using Tokens = std::vector<absl::StatusOr<Sampled>>;
  // Appends the next token of each row, or why it has none: where a step fails, only of the rows that are at fault.
  void NextTokens(absl::Span<const SequenceNumber> rows, Tokens& tokens);
  absl::Status Forward(absl::Span<const SequenceNumber> numbers);
  void Emit(SequenceNumber number, absl::StatusOr<Sampled> sampled);
  void End(SequenceNumber number, absl::Status status);

  Device& device_;
  const std::shared_ptr<const Model> model_;
  KvStore& store_;
  const DecodeEngineOptions options_;
  Clock& clock_;
  const std::unique_ptr<TokenSampler> sampler_;
  const std::shared_ptr<ProgressMeter> progress_;
  const std::shared_ptr<Inbox> inbox_;  // shared with events that may fire after the engine is gone

  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<StepLoop> loop_;
  std::map<SequenceNumber, std::unique_ptr<Active>> sequences_;  // all that have not ended
  std::deque<SequenceNumber> waiting_;                           // their KV is complete
  std::vector<SequenceNumber> running_;
  std::thread thread_;
};

}  // namespace runahead
