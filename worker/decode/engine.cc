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
#include "server/base/logging.h"
#include "worker/decode/check_sequence.h"
#include "worker/decode/decode_loop.h"

namespace runahead {
namespace {

// OK where the lease does not exist: KvStore::Complete reports that.
absl::Status CheckFits(const DecodeSequence& sequence, KvStore& store) {
  const absl::StatusOr<KvStore::Size> lease = store.SizeOf(sequence.lease);
  if (!lease.ok()) return absl::OkStatus();
  const int64_t prompt = static_cast<int64_t>(sequence.prompt_ids.size());
  if (prompt != lease->prompt_tokens) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "prompt_ids: has %d ids, and the lease was reserved for a prompt of %d tokens", prompt, lease->prompt_tokens));
  }
  if (prompt + sequence.max_tokens > lease->total_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("max_tokens: is %d after a prompt of %d tokens, and the lease was reserved for %d in all",
                        sequence.max_tokens, prompt, lease->total_tokens));
  }
  return absl::OkStatus();
}

}  // namespace

struct DecodeEngine::Active {
  DecodeSequence request;
  std::shared_ptr<DecodeSink> sink;
  int64_t length = 0;                  // of prompt and output so far; KV of all but the last token is in the store
  int32_t last = 0;                    // token
  PenaltyCounts counts;                // of prompt and output so far
  TokenSampler::CountsRow counts_row;  // of counts, from the join on
  std::optional<KvStore::Sequence> kv;
  absl::Time since;  // for traces: added, or KV complete

  // On the thread that adds the sequence: counting a long prompt takes milliseconds, for which the loop would
  // hold up all sequences.
  Active(DecodeSequence sequence, std::shared_ptr<DecodeSink> to)
      : request(std::move(sequence)),
        sink(std::move(to)),
        length(static_cast<int64_t>(request.prompt_ids.size())),
        counts(request.sampling, request.prompt_ids) {
    Append(request.first_token);
  }
  // What was waited for until `now`.
  void Waited(const char* span, absl::Time now) {
    if (request.spans != nullptr) request.spans->Add(span, -1, since, now);
    since = now;
  }
  void Append(int32_t token) {
    ++length;
    last = token;
    counts.AddOutput(token);
  }
  bool Finished() const {
    const int64_t output = length - static_cast<int64_t>(request.prompt_ids.size());
    const std::vector<int32_t>& stops = request.stop_ids;
    return output >= request.max_tokens || std::find(stops.begin(), stops.end(), last) != stops.end();
  }
};

// What other threads have to say to the loop.
struct DecodeEngine::Inbox {
  explicit Inbox(std::shared_ptr<ProgressMeter> meter) : progress(std::move(meter)) {}

  struct Completed {
    SequenceNumber number = 0;
    absl::Status status;
  };
  struct Letters {
    std::vector<std::pair<SequenceNumber, std::unique_ptr<Active>>> added;
    std::vector<Completed> completed;  // of sequences added earlier, or by the same letters
    std::vector<SequenceNumber> cancelled;
    bool stop = false;
    bool empty() const { return added.empty() && completed.empty() && cancelled.empty() && !stop; }
  };

  const std::shared_ptr<ProgressMeter> progress;
  Mutex mu;
  CondVar changed;
  Letters letters RUNAHEAD_GUARDED_BY(mu);
  SequenceNumber next RUNAHEAD_GUARDED_BY(mu) = 1;
  // Of all sequences that have not ended.
  absl::flat_hash_map<LeaseId, SequenceNumber> leases RUNAHEAD_GUARDED_BY(mu);

  void Complete(SequenceNumber number, const absl::Status& status) RUNAHEAD_EXCLUDES(mu) {
    MutexLock lock(mu);
    letters.completed.push_back({number, status});
    Changed();
  }
  void Changed() RUNAHEAD_REQUIRES(mu) {
    progress->Wanted();
    changed.NotifyAll();
  }
  Letters Take(bool wait) RUNAHEAD_EXCLUDES(mu) {
    MutexLock lock(mu);
    if (wait && letters.empty()) progress->Resting();
    while (wait && letters.empty()) changed.Wait(mu);
    progress->Awake();
    return std::exchange(letters, {});
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
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<TokenSampler> sampler,
                            TokenSampler::Create(device, options.max_batch, model->config().vocab));
  std::unique_ptr<Stream> stream = device.NewStream("decode");
  std::unique_ptr<StepLoop> loop;
  if (options.make_loop) {
    RUNAHEAD_ASSIGN_OR_RETURN(loop, options.make_loop(*stream));
  } else {
    loop = std::make_unique<DecodeLoop>(*model, device, store, *stream);
  }
  return std::unique_ptr<DecodeEngine>(new DecodeEngine(device, std::move(model), store, std::move(options), clock,
                                                        std::move(sampler), std::move(stream), std::move(loop)));
}

DecodeEngine::DecodeEngine(Device& device, std::shared_ptr<const Model> model, KvStore& store,
                           DecodeEngineOptions options, Clock& clock, std::unique_ptr<TokenSampler> sampler,
                           std::unique_ptr<Stream> stream, std::unique_ptr<StepLoop> loop)
    : device_(device),
      model_(std::move(model)),
      store_(store),
      options_(std::move(options)),
      clock_(clock),
      sampler_(std::move(sampler)),
      progress_(options_.progress != nullptr ? options_.progress : std::make_shared<ProgressMeter>()),
      inbox_(std::make_shared<Inbox>(progress_)),
      stream_(std::move(stream)),
      loop_(std::move(loop)),
      thread_([this] { Run(); }) {}

DecodeEngine::~DecodeEngine() {
  {
    MutexLock lock(inbox_->mu);
    inbox_->letters.stop = true;
    inbox_->Changed();
  }
  thread_.join();
}

absl::StatusOr<SequenceNumber> DecodeEngine::Add(DecodeSequence sequence, std::shared_ptr<DecodeSink> sink) {
  const LeaseId lease = sequence.lease;
  absl::Status valid = CheckSequence(sequence, model_->config());
  if (valid.ok()) valid = CheckFits(sequence, store_);
  if (valid.ok()) valid = CheckTokens(static_cast<int64_t>(sequence.prompt_ids.size()) + sequence.max_tokens);
  auto active = std::make_unique<Active>(std::move(sequence), std::move(sink));
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
      inbox_->Changed();
    }
  }
  if (!valid.ok()) {
    store_.Release(lease);
    return valid;
  }
  // Nothing to decode: no reason to wait for KV.
  const Event complete = finished ? Event() : store_.Complete(lease);
  complete.OnFire([inbox = inbox_, number](const absl::Status& status) { inbox->Complete(number, status); });
  return number;
}

void DecodeEngine::Cancel(SequenceNumber number) {
  MutexLock lock(inbox_->mu);
  inbox_->letters.cancelled.push_back(number);
  inbox_->Changed();
}

bool DecodeEngine::CancelLease(const LeaseId& lease) {
  MutexLock lock(inbox_->mu);
  const auto found = inbox_->leases.find(lease);
  if (found == inbox_->leases.end()) return false;
  inbox_->letters.cancelled.push_back(found->second);
  inbox_->Changed();
  return true;
}

void DecodeEngine::Run() {
  NameThread("decode steps");
  while (true) {
    const bool idle = running_.empty() && waiting_.empty();
    if (idle) Measured(0, [this] { loop_->OnIdle(); });
    Inbox::Letters letters = inbox_->Take(/*wait=*/idle);
    for (auto& [number, active] : letters.added) sequences_.emplace(number, std::move(active));
    for (const auto& [number, status] : letters.completed) Admit(number, status);
    for (const SequenceNumber number : letters.cancelled) End(number, absl::CancelledError("decode was cancelled"));
    if (letters.stop) break;
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
  if (active.Finished()) return End(number, absl::OkStatus());
  absl::StatusOr<KvStore::Sequence> kv = store_.Open(active.request.lease);
  if (!kv.ok()) return End(number, kv.status());
  active.kv = *std::move(kv);
  active.Waited("wait_kv", clock_.Now());
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
    absl::StatusOr<TokenSampler::CountsRow> row =
        sampler_->TakeCountsRow(*stream_, active.request.sampling, active.counts);
    if (row.ok()) {
      active.counts_row = *std::move(row);
    } else {
      End(*joined, row.status());
    }
  }
}

void DecodeEngine::Step() {
  const absl::Time begin = clock_.Now();
  const std::vector<SequenceNumber> rows = running_;
  Tokens tokens;
  Measured(WorkOf(rows), [&] { NextTokens(rows, tokens); });
  const absl::Time end = clock_.Now();
  const auto batch_size = static_cast<int64_t>(rows.size());
  if (options_.on_step) options_.on_step({batch_size, end - begin});
  for (const SequenceNumber row : rows) {
    if (SpanRecorder* spans = sequences_.at(row)->request.spans.get()) spans->Add("step", -1, begin, end, batch_size);
  }
  for (size_t row = 0; row < rows.size(); ++row) Emit(rows[row], std::move(tokens[row]));
}

template <typename Unit>
void DecodeEngine::Measured(double work, const Unit& unit) {
  progress_->Begin(work);
  unit();
  progress_->End();
}

// A step reads the weights, computes each row, and reads the KV of each position: what a position takes is about a
// thousandth of what a row does. All that is read of the weights anyway counts as 16 rows.
double DecodeEngine::WorkOf(absl::Span<const SequenceNumber> rows) const {
  double work = 16 + static_cast<double>(rows.size());
  for (const SequenceNumber row : rows) work += 1e-3 * static_cast<double>(sequences_.at(row)->length);
  return work;
}

// A pass that fails does not say whose fault it is, so its halves are tried, down to rows that fail alone: the others
// lose time and nothing else, for a row gives the same in any company, and writing its KV again changes nothing. At
// most 2n - 1 passes for n rows, and about 2 log2(n) where one of them is at fault.
void DecodeEngine::NextTokens(absl::Span<const SequenceNumber> rows, Tokens& tokens) {
  const absl::Status status = Forward(rows);
  if (!status.ok() && rows.size() > 1) {
    LogDebug("decode", "a step of ", rows.size(), " sequences is tried in halves: ", status.message());
    const size_t half = rows.size() / 2;
    NextTokens(rows.subspan(0, half), tokens);
    NextTokens(rows.subspan(half), tokens);
    return;
  }
  if (!status.ok()) LogWarning("decode", "a sequence ends, for its step fails without others too: ", status.message());
  for (size_t row = 0; row < rows.size(); ++row) {
    tokens.push_back(status.ok() ? sampler_->Token(row) : status);
  }
}

// One pass for `numbers`, each with its last token; returns when the device is done with it, also on failure, for the
// sequences' memory must not be given back before.
absl::Status DecodeEngine::Forward(absl::Span<const SequenceNumber> numbers) {
  std::vector<DecodeRow> rows;
  std::vector<TokenSampler::Row> draws;
  for (const SequenceNumber number : numbers) {
    const Active& active = *sequences_.at(number);
    rows.push_back(
        {&*active.kv, active.last, active.length - 1, active.request.spans.get(), active.request.request_id});
    draws.push_back({active.request.sampling, active.length, active.counts, active.counts_row});
  }
  const bool repeats = loop_->repeats();
  if (repeats) device_.BeginStep(*stream_);
  const absl::StatusOr<Tensor> logits = loop_->Step(rows);
  absl::Status status = logits.status();
  if (status.ok()) status = sampler_->Enqueue(*stream_, *logits, draws);
  if (repeats) device_.EndStep(*stream_);
  const absl::Status done = device_.Record(*stream_).Wait();
  if (status.ok()) status = done;
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("a decode step failed: ", status.ToString()));
}

void DecodeEngine::Emit(SequenceNumber number, absl::StatusOr<Sampled> sampled) {
  if (!sampled.ok()) return End(number, sampled.status());
  Active& active = *sequences_.at(number);
  active.Append(sampled->id);
  active.sink->OnToken(*std::move(sampled));
  if (active.Finished()) End(number, absl::OkStatus());
}

void DecodeEngine::End(SequenceNumber number, absl::Status status) {
  const auto it = sequences_.find(number);
  if (it == sequences_.end()) return;
  const std::unique_ptr<Active> active = std::move(it->second);
  sequences_.erase(it);
  running_.erase(std::remove(running_.begin(), running_.end(), number), running_.end());
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), number), waiting_.end());
  if (active->kv.has_value()) loop_->Leave(*active->kv);
  active->kv.reset();
  store_.Release(active->request.lease);
  {
    MutexLock lock(inbox_->mu);
    inbox_->leases.erase(active->request.lease);
  }
  active->sink->OnEnd(std::move(status));
}

}  // namespace runahead
