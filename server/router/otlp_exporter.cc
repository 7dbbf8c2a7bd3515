#include "server/router/otlp_exporter.h"

#include <algorithm>
#include <utility>

#include "kernels/base/monotonic.h"
#include "kernels/base/thread_name.h"
#include "server/base/logging.h"
#include "server/base/random.h"
#include "server/router/otlp_json.h"

namespace runahead {
namespace {

// So that traces of one burst go together.
constexpr absl::Duration kLinger = absl::Seconds(1);
// Collectors take bodies of 20 MiB and more; one trace of a chain of 16 is up to 1 MB.
constexpr size_t kEnoughJson = size_t{4} << 20;
constexpr absl::Duration kFirstPause = absl::Seconds(1), kLongestPause = absl::Seconds(30);
constexpr absl::Duration kLinePeriod = absl::Minutes(1);

}  // namespace

OtlpExporter::OtlpExporter(const OtlpEndpoint& endpoint, const OtlpHeaders& headers, OtlpMetrics& metrics, Clock& clock,
                           OtlpLimits limits, HostLookup::Resolver resolver)
    : metrics_(metrics),
      clock_(clock),
      limits_(limits),
      post_(endpoint, headers, std::move(resolver)),
      partly_taken_(kLinePeriod),
      not_taken_(kLinePeriod),
      refused_(kLinePeriod),
      dropped_(kLinePeriod),
      backoff_(kFirstPause, kLongestPause),
      thread_([this] { Run(); }) {}

void OtlpExporter::Offer(WholeTrace whole) {
  const size_t bytes = whole.trace.SpaceUsedLong();
  {
    MutexLock lock(mu_);
    if (!end_by_ && waiting_.size() < limits_.traces && bytes_ + bytes <= limits_.bytes) {
      bytes_ += bytes;
      waiting_.push_back({std::move(whole), bytes, clock_.Now()});
      changed_.NotifyAll();
      return;
    }
  }
  metrics_.dropped.Increment();
  SayDropped();
}

void OtlpExporter::Stop() {
  if (!thread_.joinable()) return;
  const absl::Time end_by = MonotonicNow() + limits_.flush;
  {
    MutexLock lock(mu_);
    end_by_ = end_by;
    changed_.NotifyAll();
    while (!ended_ && MonotonicNow() < end_by) changed_.WaitFor(mu_, end_by - MonotonicNow());
  }
  post_.Cut();
  thread_.join();
}

void OtlpExporter::Run() {
  NameThread("otlp");
  size_t unsent = 0;
  for (;;) {
    const std::string json = NextRequest(unsent);
    if (json.empty() || !SendUntilTaken(json, unsent)) break;
  }
  DropRest(unsent);
}

bool OtlpExporter::IsDue() const {
  if (waiting_.empty()) return end_by_.has_value();
  return end_by_ || waiting_.size() >= kOtlpBatch || clock_.Now() >= waiting_.front().since + kLinger;
}

std::string OtlpExporter::NextRequest(size_t& traces) {
  {
    MutexLock lock(mu_);
    while (!IsDue()) {
      clock_.WaitUntil(mu_, changed_, waiting_.empty() ? absl::InfiniteFuture() : waiting_.front().since + kLinger);
    }
  }
  std::vector<std::string> parts;
  size_t bytes = 0;
  while (parts.size() < kOtlpBatch && bytes < kEnoughJson) {
    Waiting next;
    {
      MutexLock lock(mu_);
      if (waiting_.empty()) break;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      bytes_ -= next.bytes;
    }
    parts.push_back(OtlpResourceSpans(next.whole, RandomBits64));
    bytes += parts.back().size();
  }
  traces = parts.size();
  return parts.empty() ? std::string() : OtlpRequest(parts);
}

bool OtlpExporter::SendUntilTaken(const std::string& json, size_t traces) {
  for (;;) {
    bool last = false;
    const OtlpAnswer answer = Try(json, last);
    if (!answer.why.empty()) Say(answer);
    if (answer.result == OtlpResult::kTaken) {
      backoff_.Worked();
      metrics_.sent.Increment(static_cast<double>(traces));
      return true;
    }
    if (answer.result == OtlpResult::kRefused) {
      metrics_.failed.Increment(static_cast<double>(traces));
      return true;
    }
    if (last) return false;
    const absl::Time now = clock_.Now();
    backoff_.Failed(now);
    // A collector that says 0 would be asked without end.
    AwaitRetry(std::max(backoff_.due(), now + answer.after.value_or(absl::ZeroDuration())));
  }
}

OtlpAnswer OtlpExporter::Try(const std::string& json, bool& last) {
  absl::Duration patience = limits_.answer;
  {
    MutexLock lock(mu_);
    last = end_by_.has_value();
    if (last) patience = *end_by_ - MonotonicNow();
  }
  if (patience <= absl::ZeroDuration()) return {OtlpResult::kLater, "the router ends"};
  return post_.Send(json, patience);
}

void OtlpExporter::AwaitRetry(absl::Time until) {
  MutexLock lock(mu_);
  while (!end_by_ && clock_.Now() < until) clock_.WaitUntil(mu_, changed_, until);
}

void OtlpExporter::DropRest(size_t unsent) {
  size_t dropped = unsent;
  {
    MutexLock lock(mu_);
    dropped += waiting_.size();
    waiting_.clear();
    ended_ = true;
    changed_.NotifyAll();
  }
  if (dropped == 0) return;
  metrics_.dropped.Increment(static_cast<double>(dropped));
  LogWarning("otlp", dropped, " traces are dropped: the router ends, and the collector at ", post_.address(),
             " has not taken them; see whether it runs and can be reached from here");
}

void OtlpExporter::Say(const OtlpAnswer& answer) {
  RareLine& line = answer.result == OtlpResult::kTaken   ? partly_taken_
                   : answer.result == OtlpResult::kLater ? not_taken_
                                                         : refused_;
  const std::optional<int64_t> times = line.Happened();
  if (!times) return;
  const char* const what = answer.result == OtlpResult::kTaken   ? "took traces in part"
                           : answer.result == OtlpResult::kLater ? "takes no traces now, and is asked again"
                                                                 : "refused traces";
  LogWarning("otlp", "the collector at ", post_.address(), " ", what, ": ", answer.why, " (", *times,
             " since this was said last)");
}

void OtlpExporter::SayDropped() {
  if (const std::optional<int64_t> times = dropped_.Happened()) {
    LogWarning("otlp", "a trace for the collector at ", post_.address(),
               " is dropped: too many wait, or the router ends (", *times, " since this was said last)");
  }
}

}  // namespace runahead
