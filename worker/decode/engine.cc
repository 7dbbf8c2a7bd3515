#include "worker/decode/engine.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"
#include "server/base/bell.h"
#include "server/base/logging.h"
#include "worker/decode/check_sequence.h"
#include "worker/decode/decode_loop.h"
#include "worker/decode/engine_active.h"

namespace runahead {
namespace {

absl::Status CheckFits(const DecodeSequence& sequence, const KvStore::Size& lease) {
  const int64_t prompt = static_cast<int64_t>(sequence.prompt_ids.size());
  if (prompt != lease.prompt_tokens) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "prompt_ids: has %d ids, and the lease was reserved for a prompt of %d tokens", prompt, lease.prompt_tokens));
  }
  if (prompt + sequence.max_tokens > lease.total_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("max_tokens: is %d after a prompt of %d tokens, and the lease was reserved for %d in all",
                        sequence.max_tokens, prompt, lease.total_tokens));
  }
  return absl::OkStatus();
}

}  // namespace

// What other threads have to say to the loop.
struct DecodeEngine::Inbox {
  explicit Inbox(std::shared_ptr<ProgressMeter> meter) : progress(meter), bell(std::move(meter)) {}

  struct Completed {
    SequenceNumber number = 0;
    absl::Status status;
  };
  struct Carriage {
    SequenceNumber number = 0;
    uint64_t move = 0;
    absl::StatusOr<int64_t> bytes;
  };
  struct Letters {
    std::vector<std::pair<SequenceNumber, std::unique_ptr<Active>>> added;
    std::vector<Completed> completed;  // of sequences added earlier, or by the same letters
    std::vector<SequenceNumber> cancelled;
    std::vector<std::pair<SequenceNumber, std::unique_ptr<Moving>>> moves;
    std::vector<Carriage> carried;
    bool freed = false;  // memory of the store
    bool masks = false;  // some were made
    bool stop = false;
    bool empty() const { return only_masks() && !masks; }
    bool only_masks() const {
      return added.empty() && completed.empty() && cancelled.empty() && moves.empty() && carried.empty() && !freed &&
             !stop;
    }
  };

  const std::shared_ptr<ProgressMeter> progress;
  Bell bell;  // rings for each letter
  Mutex mu;
  Letters letters RUNAHEAD_GUARDED_BY(mu);
  SequenceNumber next RUNAHEAD_GUARDED_BY(mu) = 1;
  // Of all sequences that have not ended.
  absl::flat_hash_map<LeaseId, SequenceNumber> leases RUNAHEAD_GUARDED_BY(mu);

  void Complete(SequenceNumber number, const absl::Status& status) RUNAHEAD_EXCLUDES(mu) {
    MutexLock lock(mu);
    letters.completed.push_back({number, status});
    bell.Ring();
  }
  void Carried(SequenceNumber number, uint64_t move, absl::StatusOr<int64_t> bytes) RUNAHEAD_EXCLUDES(mu) {
    MutexLock lock(mu);
    letters.carried.push_back({number, move, std::move(bytes)});
    bell.Ring();
  }
  void Freed() RUNAHEAD_EXCLUDES(mu) {
    MutexLock lock(mu);
    letters.freed = true;
    bell.Ring();
  }
  // Of masks alone there is nothing to say to a step that waits for its own.
  bool HasLetters() RUNAHEAD_EXCLUDES(mu) {
    MutexLock lock(mu);
    return !letters.only_masks();
  }
  void MaskMade() RUNAHEAD_EXCLUDES(mu) {
    MutexLock lock(mu);
    letters.masks = true;
    bell.Ring();
  }
  Letters Take(bool wait) RUNAHEAD_EXCLUDES(mu) {
    for (;;) {
      const int64_t rung = bell.rung();
      {
        MutexLock lock(mu);
        if (!wait || !letters.empty()) {
          progress->Awake();
          return std::exchange(letters, {});
        }
      }
      progress->Resting();
      bell.Await(rung, absl::InfiniteFuture());
    }
  }
};

absl::StatusOr<std::unique_ptr<DecodeEngine>> DecodeEngine::Create(Device& device, std::shared_ptr<const Model> model,
                                                                   KvStore& store, DecodeEngineOptions options,
                                                                   Clock& clock) {
  const int64_t row_bytes = model->kv_row_bytes(), layers = model->config().layers;
  if (store.options().row_bytes != row_bytes || store.options().layers != layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the KV store has %d layers of %d bytes a token, the model needs %d layers of %d bytes",
                        store.options().layers, store.options().row_bytes, layers, row_bytes));
  }
  if (const std::vector<int64_t>& windows = store.options().windows; !windows.empty() && windows != model->windows()) {
    return absl::InvalidArgumentError("the KV store waits for what other windows than the model's leave to decode");
  }
  if (options.max_batch < 1) return absl::InvalidArgumentError("max_batch is the size of a step: at least 1");
  if (options.step_rows < 0 || (options.step_rows > 0 && options.make_loop)) {
    return absl::InvalidArgumentError(
        "step_rows: rows of prompts are computed over the store's own KV, by no other loop than a DecodeLoop");
  }
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<TokenSampler> sampler,
                            TokenSampler::Create(device, options.max_batch, model->config().vocab));
  std::unique_ptr<Stream> stream = device.NewStream("decode");
  std::unique_ptr<StepLoop> loop;
  if (options.make_loop) {
    RUNAHEAD_ASSIGN_OR_RETURN(loop, options.make_loop(*stream));
  } else {
    loop = std::make_unique<DecodeLoop>(*model, device, store, *stream);
  }
  std::unique_ptr<StepLoop> prompts;
  if (options.step_rows > 0) {
    prompts = std::make_unique<DecodeLoop>(*model, device, store, *stream, RowKind::kPrompt);
  }
  return std::unique_ptr<DecodeEngine>(new DecodeEngine(device, std::move(model), store, std::move(options), clock,
                                                        std::move(sampler), std::move(stream), std::move(loop),
                                                        std::move(prompts)));
}

DecodeEngine::DecodeEngine(Device& device, std::shared_ptr<const Model> model, KvStore& store,
                           DecodeEngineOptions options, Clock& clock, std::unique_ptr<TokenSampler> sampler,
                           std::unique_ptr<Stream> stream, std::unique_ptr<StepLoop> loop,
                           std::unique_ptr<StepLoop> prompts)
    : device_(device),
      model_(std::move(model)),
      store_(store),
      options_(std::move(options)),
      clock_(clock),
      sampler_(std::move(sampler)),
      progress_(options_.progress != nullptr ? options_.progress : std::make_shared<ProgressMeter>()),
      inbox_(std::make_shared<Inbox>(progress_)),
      masks_(options_.grammars == nullptr ? nullptr
                                          : std::make_unique<MaskMaker>([inbox = inbox_] { inbox->MaskMade(); })),
      stream_(std::move(stream)),
      loop_(std::move(loop)),
      prompts_(std::move(prompts)),
      thread_([this] { Run(); }) {
  if (prompts_ != nullptr) store_.OnFreed([inbox = inbox_] { inbox->Freed(); });
}

DecodeEngine::~DecodeEngine() {
  {
    MutexLock lock(inbox_->mu);
    inbox_->letters.stop = true;
    inbox_->bell.Ring();
  }
  thread_.join();
  if (prompts_ != nullptr) store_.OnFreed(nullptr);
}

absl::Status DecodeEngine::CheckRows() const {
  if (prompts_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this worker computes no rows of prompts: ", options_.no_rows_because));
}

// Output that is there already needs no rows of prompts: any loop computes its KV, as it does of what is drawn here.
absl::Status DecodeEngine::CheckContinues(const DecodeSequence& sequence, const KvStore::Size& lease) const {
  if (lease.grows) RUNAHEAD_RETURN_IF_ERROR(CheckRows());
  if (sequence.moved_tokens.has_value()) RUNAHEAD_RETURN_IF_ERROR(CheckMoves());
  if (lease.handed_tokens < lease.prompt_tokens) return CheckRows();
  if (!sequence.output_ids.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "prompt_ids: the first token is to be drawn here, and the lease was reserved for the hand-off of the whole "
      "prompt: its last token must be computed here, too");
}

absl::StatusOr<SequenceNumber> DecodeEngine::Add(DecodeSequence sequence, std::shared_ptr<DecodeSink> sink) {
  const LeaseId lease = sequence.lease;
  absl::Status valid = CheckSequence(sequence, model_->config());
  // Where the lease does not exist, KvStore::Complete reports that.
  const absl::StatusOr<KvStore::Size> size = store_.SizeOf(lease);
  if (valid.ok() && size.ok()) valid = CheckFits(sequence, *size);
  if (valid.ok() && size.ok()) valid = CheckContinues(sequence, *size);
  if (valid.ok() && size.ok()) valid = TakeMoved(sequence);
  if (valid.ok()) valid = CheckTokens(static_cast<int64_t>(sequence.prompt_ids.size()) + sequence.max_tokens);
  std::shared_ptr<const WantedGrammar> grammar;
  if (valid.ok()) {
    absl::StatusOr<std::shared_ptr<const WantedGrammar>> wanted = WantGrammar(sequence.rules, options_.grammars.get());
    valid = wanted.status();
    if (wanted.ok()) grammar = *std::move(wanted);
  }
  const Event ready = grammar == nullptr ? Event() : grammar->ready();
  auto active =
      std::make_unique<Active>(std::move(sequence), std::move(sink), model_->config().vocab, std::move(grammar));
  active->since = clock_.Now();
  const bool finished = valid.ok() && active->Finished();
  SequenceNumber number = 0;
  {
    MutexLock lock(inbox_->mu);
    if (inbox_->leases.contains(lease)) {
      return absl::FailedPreconditionError(absl::StrFormat("lease %016x is decoded already", lease.number));
    }
    if (valid.ok()) {
      number = inbox_->next++;
      inbox_->leases.emplace(lease, number);
      inbox_->letters.added.emplace_back(number, std::move(active));
      inbox_->bell.Ring();
    }
  }
  if (!valid.ok()) {
    store_.Release(lease);
    return valid;
  }
  // Nothing to decode: no reason to wait for KV, unless others may begin with it.
  const Event complete = finished && !CheckLends().ok() ? Event() : WhenAll({store_.Complete(lease), ready});
  complete.OnFire([inbox = inbox_, number](const absl::Status& status) { inbox->Complete(number, status); });
  return number;
}

void DecodeEngine::Cancel(SequenceNumber number) {
  MutexLock lock(inbox_->mu);
  inbox_->letters.cancelled.push_back(number);
  inbox_->bell.Ring();
}

bool DecodeEngine::CancelLease(const LeaseId& lease) {
  MutexLock lock(inbox_->mu);
  const auto found = inbox_->leases.find(lease);
  if (found == inbox_->leases.end()) return false;
  inbox_->letters.cancelled.push_back(found->second);
  inbox_->bell.Ring();
  return true;
}

SequenceCarrier::Done DecodeEngine::TellCarried(SequenceNumber number, uint64_t move) const {
  return
      [inbox = inbox_, number, move](absl::StatusOr<int64_t> bytes) { inbox->Carried(number, move, std::move(bytes)); };
}

bool DecodeEngine::Move(const LeaseId& lease, std::shared_ptr<SequenceCarrier> carrier, int64_t most_tokens) {
  auto moving = std::make_unique<Moving>();
  moving->carrier = std::move(carrier);
  moving->most = most_tokens;
  moving->since = clock_.Now();
  MutexLock lock(inbox_->mu);
  const auto found = inbox_->leases.find(lease);
  if (found == inbox_->leases.end()) return false;
  inbox_->letters.moves.emplace_back(found->second, std::move(moving));
  inbox_->bell.Ring();
  return true;
}

bool DecodeEngine::HasLetters() const {
  return inbox_->HasLetters();
}

void DecodeEngine::AwaitRinging(const Event& event, absl::FunctionRef<bool()> done) {
  event.OnFire([inbox = inbox_](const absl::Status&) { inbox->bell.Ring(); });
  for (;;) {
    const int64_t rung = inbox_->bell.rung();
    if (done()) return;
    inbox_->bell.Await(rung, absl::InfiniteFuture());
  }
}

void DecodeEngine::Run() {
  NameThread("decode steps");
  while (true) {
    const bool idle = running_.empty() && waiting_.empty();
    if (idle) Measured(0, [this] { loop_->OnIdle(); });
    Inbox::Letters letters = inbox_->Take(/*wait=*/idle || std::exchange(awaits_memory_, false));
    for (auto& [number, active] : letters.added) sequences_.emplace(number, std::move(active));
    for (const auto& [number, status] : letters.completed) Admit(number, status);
    for (auto& [number, moving] : letters.moves) BeginMove(number, std::move(moving));
    for (const auto& [number, move, bytes] : letters.carried) Carried(number, move, bytes);
    for (const SequenceNumber number : letters.cancelled) End(number, absl::CancelledError("decode was cancelled"));
    if (letters.stop) break;
    ComeBack();
    Join();
    if (!running_.empty()) Step();
  }
  while (!sequences_.empty()) {
    End(sequences_.begin()->first, absl::UnavailableError("the decode worker is stopping"));
  }
  progress_->Resting();
}

// The lease is opened at once, not at the join: from here on it cannot expire, however long the queue is.
void DecodeEngine::Admit(SequenceNumber number, const absl::Status& kv_complete) {
  const auto it = sequences_.find(number);
  if (it == sequences_.end()) return;
  if (!kv_complete.ok()) return End(number, kv_complete);
  Active& active = *it->second;
  if (active.Finished() && !CheckLends().ok()) return End(number, absl::OkStatus());
  absl::StatusOr<KvStore::Sequence> kv = store_.Open(active.request.lease);
  if (!kv.ok()) return End(number, kv.status());
  active.kv = *std::move(kv);
  active.computed = active.kv->handed_tokens();
  if (absl::Status copied = CopyKnown(*active.kv); !copied.ok()) return End(number, std::move(copied));
  active.Waited("wait_kv", clock_.Now());
  if (active.Finished()) return End(number, absl::OkStatus());  // which keeps it
  waiting_.push_back(number);
}

void DecodeEngine::Join() {
  const std::vector<SequenceNumber> waiting(waiting_.begin(), waiting_.end());
  StepPlan plan = PlanStep(running_, waiting, {options_.max_batch});
  running_ = std::move(plan.rows);
  waiting_.erase(waiting_.begin(), waiting_.begin() + plan.joined);
  for (auto joined = waiting.begin(); joined != waiting.begin() + plan.joined; ++joined) {
    Active& active = *sequences_.at(*joined);
    active.Waited("queue", clock_.Now());
    absl::StatusOr<TokenSampler::SequenceRow> row = sampler_->TakeRow(*stream_, active.request.sampling, active.counts);
    if (row.ok()) {
      active.row = *std::move(row);
    } else {
      End(*joined, row.status());
    }
  }
}

void DecodeEngine::End(SequenceNumber number, absl::Status status) {
  const auto it = sequences_.find(number);
  if (it == sequences_.end()) return;
  const MemoryTurn turn = TurnOf(number);
  const std::unique_ptr<Active> active = std::move(it->second);
  sequences_.erase(it);
  running_.erase(std::remove(running_.begin(), running_.end(), number), running_.end());
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), number), waiting_.end());
  if (const bool was_parked = parked_.erase(turn) > 0; was_parked) {
    ReportParking(/*one_more=*/false);
  } else if (active->kv.has_value()) {
    // A step that failed says nothing of the rows of others.
    if (status.ok() || absl::IsCancelled(status)) KeepKnown(*active);
    loop_->Leave(*active->kv);
  }
  if (active->moving != nullptr) active->moving->carrier->Cancel();
  active->kv.reset();
  store_.Release(active->request.lease);
  {
    MutexLock lock(inbox_->mu);
    inbox_->leases.erase(active->request.lease);
  }
  active->sink->OnEnd(std::move(status));
}

}  // namespace runahead
