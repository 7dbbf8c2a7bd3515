#include "client/bench/load_run.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace runahead {

// Of one answer. The door calls it on its threads, one call after the other.
class LoadRun::Recorder final : public AnswerHearer {
 public:
  // `asked`: ids of the prompt, where they are known.
  Recorder(LoadRun& run, const Turn& turn, int64_t asked) : run_(run), turn_(turn), last_(turn.start), asked_(asked) {}

  void OnTokens(int64_t tokens) override {
    const absl::Time now = run_.clock_.Now();
    if (tokens_ == 0) {
      record_.ttft = now - turn_.start;
    } else {
      record_.itls.push_back(now - last_);
    }
    last_ = now;
    tokens_ += tokens;
  }

  void OnEnd(const absl::Status& status, const AnswerCounts& counts) override {
    record_.status = status.ok() && tokens_ == 0 ? absl::InternalError("the answer had no token") : status;
    record_.e2e = last_ - turn_.start;
    record_.input_tokens = counts.input_tokens.value_or(asked_);
    record_.output_tokens = counts.output_tokens.value_or(tokens_);
    record_.cached_tokens = counts.cached_tokens;
    record_.counted_by_events = !counts.output_tokens.has_value();
    run_.Ended(turn_.place, record_);
  }

 private:
  LoadRun& run_;
  const Turn turn_;
  absl::Time last_;  // arrival
  const int64_t asked_;
  int64_t tokens_ = 0;
  BenchRecord record_;
};

LoadOutcome LoadRun::Run(const LoadOptions& options, const Source& source, PoissonArrivals arrivals) {
  {
    MutexLock lock(mu_);
    counts_ = {};
    peak_ = 0;
    held_until_ = absl::InfinitePast();
  }
  began_ = clock_.Now();
  int64_t sent = 0;
  for (; sent < options.requests; ++sent) {
    const absl::Duration planned = arrivals.Next();
    const BenchRequest request = source(sent);
    const std::optional<Turn> turn = AwaitTurn(options, planned);
    if (!turn) break;
    door_.Ask(request, std::make_shared<Recorder>(*this, *turn, static_cast<int64_t>(request.ids.size())));
  }
  MutexLock lock(mu_);
  while (counts_.under_way > 0) changed_.Wait(mu_);
  return {std::exchange(records_, {}), options.requests - sent, peak_};
}

std::optional<LoadRun::Turn> LoadRun::AwaitTurn(const LoadOptions& options, absl::Duration planned) {
  const absl::Time last = began_ + options.duration;
  const absl::Time until = std::min(began_ + planned, last);
  BenchRecord record;
  MutexLock lock(mu_);
  while (!stopped_ && clock_.Now() < until) clock_.WaitUntil(mu_, changed_, until);
  while (!stopped_ && counts_.under_way >= options.concurrency && clock_.Now() < last) {
    record.held = options.planned;
    clock_.WaitUntil(mu_, changed_, last);
  }
  const absl::Time now = clock_.Now();
  if (stopped_ || now >= last) return std::nullopt;
  if (record.held) {
    held_until_ = now;
  } else if (options.planned && until < held_until_) {
    record.held = true;  // behind one that was
  }
  record.start = options.planned ? planned : now - began_;
  record.late = now - began_ - record.start;
  peak_ = std::max(peak_, ++counts_.under_way);
  const absl::Time start = began_ + record.start;
  records_.push_back(std::move(record));
  return Turn{records_.size() - 1, start};
}

void LoadRun::Ended(size_t place, const BenchRecord& ended) {
  const absl::Duration end = clock_.Now() - began_;
  MutexLock lock(mu_);
  BenchRecord& record = records_[place];
  const BenchRecord planned = std::exchange(record, ended);
  record.start = planned.start;
  record.late = planned.late;
  record.held = planned.held;
  record.end = end;
  record.interrupted = stopped_ && absl::IsCancelled(record.status);
  --counts_.under_way;
  ++counts_.ended;
  if (!record.status.ok() && !record.interrupted) ++counts_.failed;
  changed_.NotifyAll();
}

void LoadRun::Stop() {
  {
    MutexLock lock(mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  door_.Cancel();
}

LoadCounts LoadRun::counts() const {
  MutexLock lock(mu_);
  return counts_;
}

}  // namespace runahead
