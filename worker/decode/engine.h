// Continuous batching: a loop in which sequences join and leave at step boundaries, one forward pass a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "scheduler/batching/parking.h"
#include "scheduler/batching/step_plan.h"
#include "server/base/clock.h"
#include "server/base/progress_meter.h"
#include "worker/decode/move.h"
#include "worker/decode/sequence.h"
#include "worker/decode/sequence_mask.h"
#include "worker/decode/step_loop.h"
#include "worker/kv/store.h"
#include "worker/model/model.h"
#include "worker/model/token_sampler.h"

namespace runahead {

// A pass of a step: of rows that decode's arithmetic computes, or of a prompt's rows, which come behind these.
struct DecodeStep {
  int64_t batch_size = 0;   // sequences
  absl::Duration took;      // forward pass and sampling
  int64_t prompt_rows = 0;  // above 0: it is of prompts' rows
  int64_t again_rows = 0;   // of its rows, those that had been computed before their sequences were parked
  bool awaited_mask = false;  // it may have taken longer than the device did
  int64_t late_masks = 0;  // sequences that were to draw a token, and draw it later: the form's mask was not made yet
};

// A sequence was parked, or is parked no more.
struct DecodeParking {
  int64_t parked = 0;     // sequences, now
  bool one_more = false;  // one was parked just now; else one came back, or ended
};

// What a step of so many sequences, which have `positions` together, takes. A step reads the weights, computes each
// row, and reads the KV of each position: what a position takes is about a thousandth of what a row does. All that is
// read of the weights anyway counts as 16 rows. For meters.
double StepWork(int64_t rows, int64_t positions);

// Rows of prompts in a pass where no sequence decodes: what products like, and at most 16 times `step_rows`.
int64_t LongestPass(int64_t step_rows, const Device& device);

struct DecodeEngineOptions {
  int64_t max_batch = 32;  // sequences in one step
  // What a step computes, beside a row of each sequence that decodes, of prompts that were not handed off as a whole
  // and of output that was computed elsewhere before: so many rows at most, of prompts so many for each that waits
  // (RowsBeside), and LongestPass where no sequence decodes. Above 0 only without make_loop, and of models loaded with
  // kUsePrefill. 0: of such output a row a step, as if it were decoded again, and such prompts are refused, with
  // `no_rows_because`.
  int64_t step_rows = 0;
  std::string no_rows_because = "step_rows is 0";             // for people
  std::function<void(const DecodeStep&)> on_step = {};        // on the engine's thread, before the pass's tokens go out
  std::function<void(const DecodeParking&)> on_parking = {};  // on the engine's thread
  // Makes what runs steps, on the engine's stream; without it that is a DecodeLoop.
  std::function<absl::StatusOr<std::unique_ptr<StepLoop>>(Stream&)> make_loop = {};
  // Of the engine's thread and what it waits for on the device; null: one of its own.
  std::shared_ptr<ProgressMeter> progress = nullptr;
  // Compiles the forms that sequences ask for; null: such sequences are refused with UNIMPLEMENTED.
  std::shared_ptr<GrammarSource> grammars = nullptr;
};

// Where memory gets short for sequences whose leases grow, some are parked: their memory goes, they give no tokens, and
// what was computed of them is computed again when they come back, after which they give what they would have given.
//
// Thread-safe. Device, store and clock outlive the engine. Only one engine that computes rows of prompts may use a
// store at a time, for it listens to OnFreed.
// Destruction ends every sequence with UNAVAILABLE. What fails for one sequence ends that one; those beside it give the
// tokens that they would have given without it.
class DecodeEngine {
 public:
  // INVALID_ARGUMENT when model and store do not agree, or the options make no sense; RESOURCE_EXHAUSTED when the
  // device has no memory for a step.
  static absl::StatusOr<std::unique_ptr<DecodeEngine>> Create(Device& device, std::shared_ptr<const Model> model,
                                                              KvStore& store, DecodeEngineOptions options,
                                                              Clock& clock = RealClock());
  ~DecodeEngine();

  // Takes the lease over: it is given back when the sequence ends, whatever the reason. The sequence waits for the
  // lease's KV, and for the grammar of its rules, without holding up others, then joins at a step boundary; where its
  // output is at its end already it ends, and leaves its prompt to others (CheckLends). All further outcomes go to
  // `sink`, also from before Add returns. Errors here, after which the sink is not called: FAILED_PRECONDITION when the
  // lease is decoded already (its owner keeps it); INVALID_ARGUMENT when it was reserved for another prompt length or
  // for fewer tokens, and what CheckSequence, CheckTokens and, for a lease that grows, too, CheckRows find (the lease
  // is given back).
  absl::StatusOr<SequenceNumber> Add(DecodeSequence sequence, std::shared_ptr<DecodeSink> sink);

  // Whether steps may take a sequence to `tokens` tokens, of prompt and output: StepLoop::CheckTokens.
  absl::Status CheckTokens(int64_t tokens) const { return loop_->CheckTokens(tokens); }

  // Whether it computes rows of prompts, which those need, too, that are parked. FAILED_PRECONDITION says why not. The
  // same always; any thread may ask.
  absl::Status CheckRows() const;

  // Whether its sequences leave their KV to prompts that begin alike, and theirs can begin with that of others
  // (LeaseRequest::least_known_tokens). FAILED_PRECONDITION says why not. The same always; any thread may ask.
  absl::Status CheckKnown() const;

  // Whether its sequences leave their KV to chains that compute the rest of prompts that begin alike, which takes no rows
  // of prompts here (LeaseRequest::rest_handed). FAILED_PRECONDITION says why not. The same always; any thread may ask.
  absl::Status CheckLends() const;

  // How many sequences are parked now; any thread may ask.
  int64_t parked() const { return parked_now_; }

  // Whether its sequences can move to other workers', and theirs can go on here: where steps keep all KV in the store.
  // FAILED_PRECONDITION says why not. The same always; any thread may ask.
  absl::Status CheckMoves() const;

  // Moves the sequence that has this lease away: its KV of the first `most_tokens` tokens, as far as there are so many,
  // goes by `carrier` while it is decoded; when little is left the sequence stops between two steps, the rest goes, and
  // it ends with OK. DecodeSink::OnMoved says what came of it; where it cannot move, or the carrier fails, it goes on.
  // A sequence that is parked, or whose prompt's KV is not whole, cannot. False when there is no such sequence.
  bool Move(const LeaseId& lease, std::shared_ptr<SequenceCarrier> carrier, int64_t most_tokens);

  // Ends a sequence with CANCELLED at the next step boundary; nothing happens when it has ended already.
  void Cancel(SequenceNumber number);
  // The same for the sequence that has this lease; false when there is none.
  bool CancelLease(const LeaseId& lease);

 private:
  struct Active;
  struct Grants;
  struct Inbox;
  struct Moving;
  // What a pass computes of a sequence.
  struct Share {
    SequenceNumber number = 0;
    int64_t rows = 0;
    bool draws = false;  // the last of them gives the next token
  };

  DecodeEngine(Device& device, std::shared_ptr<const Model> model, KvStore& store, DecodeEngineOptions options,
               Clock& clock, std::unique_ptr<TokenSampler> sampler, std::unique_ptr<Stream> stream,
               std::unique_ptr<StepLoop> loop, std::unique_ptr<StepLoop> prompts);

  // What only an engine that computes rows of prompts takes, and what none does.
  absl::Status CheckContinues(const DecodeSequence& sequence, const KvStore::Size& lease) const;
  // Of a sequence that ran elsewhere: says to the store what of it has come.
  absl::Status TakeMoved(const DecodeSequence& sequence);

  // The rest runs on the loop's thread.
  void Run();
  bool HasLetters() const;
  // Until `done`, which is looked at again when `event` fires, a mask is made, or somebody has something to say.
  void AwaitRinging(const Event& event, absl::FunctionRef<bool()> done);
  void Admit(SequenceNumber number, const absl::Status& kv_complete);
  absl::Status CopyKnown(KvStore::Sequence& kv);
  void KeepKnown(Active& active);
  void KeepPrompt(Active& active);
  void ComeBack();
  void Join();
  void Step();
  Grants Grant(const std::set<SequenceNumber>& without) const;
  Grants GrantWithMemory();
  std::map<MemoryTurn, int64_t> Lacking(const Grants& grants) const;
  std::vector<MemoryHolder> MemoryHolders() const;
  void Park(SequenceNumber number);
  void NobodySteps();
  void BeginMove(SequenceNumber number, std::unique_ptr<Moving> moving);
  absl::Status MayMove(const Active& active) const;
  void CarryOn(SequenceNumber number);
  SequenceCarrier::Done TellCarried(SequenceNumber number, uint64_t move) const;
  void Carried(SequenceNumber number, uint64_t move, const absl::StatusOr<int64_t>& bytes);
  void StandStill(SequenceNumber number);
  void MoveAway(SequenceNumber number);
  void StayHere(SequenceNumber number, const absl::Status& why);
  MemoryTurn TurnOf(SequenceNumber number) const;
  void ReportParking(bool one_more);
  void Pass(StepLoop& loop, absl::Span<const Share> shares);
  // Runs it as a unit of progress_.
  template <typename Unit>
  void Measured(double work, const Unit& unit);
  double WorkOf(absl::Span<const Share> shares) const;
  // Of each share: the next token, nothing where it draws none, or why it failed.
  using Tokens = std::vector<absl::StatusOr<std::optional<Sampled>>>;
  // Appends those of all shares. Where a pass fails, only those fail that are at fault.
  void NextTokens(StepLoop& loop, absl::Span<const Share> shares, Tokens& tokens);
  // Until the masks of those that draw are made; or the device is done with the pass, and somebody can go on without
  // them: who has none yet draws later.
  void AwaitMasks(absl::Span<const Share> shares);
  // The masks of `draws`, in the order of those of `shares` that draw.
  absl::Status FillMasks(absl::Span<const Share> shares, std::vector<TokenSampler::Row>& draws);
  absl::Status Forward(StepLoop& loop, absl::Span<const Share> shares);
  void Emit(const Share& share, absl::StatusOr<std::optional<Sampled>> sampled);
  void End(SequenceNumber number, absl::Status status);

  Device& device_;
  const std::shared_ptr<const Model> model_;
  KvStore& store_;
  const DecodeEngineOptions options_;
  Clock& clock_;
  const std::unique_ptr<TokenSampler> sampler_;
  const std::shared_ptr<ProgressMeter> progress_;
  const std::shared_ptr<Inbox> inbox_;  // shared with events that may fire after the engine is gone
  const std::unique_ptr<MaskMaker> masks_;  // null: no sequence has a form

  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<StepLoop> loop_;
  const std::unique_ptr<StepLoop> prompts_;                      // of rows of prompts; null: it computes none
  std::map<SequenceNumber, std::unique_ptr<Active>> sequences_;  // all that have not ended
  std::deque<SequenceNumber> waiting_;                           // their KV is complete
  std::vector<SequenceNumber> running_;
  // Their memory is gone. What the engine keeps of each is ids and penalty counts, as many as the context has at most.
  // Each has a lease that counts for what it needs to come back, so that new ones are refused meanwhile.
  std::set<MemoryTurn> parked_;
  std::atomic<int64_t> parked_now_ = 0;  // parked_'s size
  uint64_t next_move_ = 1;
  bool awaits_memory_ = false;  // nobody can step before some comes back, or a mask is made
  bool awaited_mask_ = false;   // the pass that runs waited for one, beside the device's work or longer
  std::thread thread_;
};

}  // namespace runahead
