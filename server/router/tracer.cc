#include "server/router/tracer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/base/printable.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// Members say that they are done some milliseconds after the last token.
constexpr absl::Duration kNotWholeYet = absl::Milliseconds(100);
// Names of traces that were kept once, to say so.
constexpr size_t kForgottenNames = 1024;

}  // namespace

TraceMode ParseTraceMode(absl::string_view name) {
  if (name == "all") return TraceMode::kAll;
  return name == "asked" ? TraceMode::kAsked : TraceMode::kOff;
}

std::shared_ptr<Tracer> Tracer::Create(TraceMode mode, size_t kept, Export exported) {
  return std::shared_ptr<Tracer>(new Tracer(mode, kept, std::move(exported)));
}

std::shared_ptr<RequestTrace> Tracer::Begin(const std::string& request_id, const std::optional<TraceContext>& caller,
                                            absl::Time arrival) {
  const bool asked = caller.has_value() && caller->sampled;
  if (mode_ == TraceMode::kOff || (mode_ == TraceMode::kAsked && !asked)) return nullptr;
  {
    MutexLock lock(mu_);
    ++recording_[request_id];
  }
  return std::make_shared<RequestTrace>(
      request_id, NewSpan(caller, /*sampled=*/true), caller, arrival,
      [self = shared_from_this()](WholeTrace whole) { self->Keep(std::move(whole)); });
}

void Tracer::Keep(WholeTrace whole) {
  KeepPacked(whole.trace.request_id(), whole.trace.SerializeAsString());
  if (export_ != nullptr) export_(std::move(whole));
}

void Tracer::KeepPacked(const std::string& request_id, std::string packed) {
  MutexLock lock(mu_);
  const auto recording = recording_.find(request_id);
  if (--recording->second == 0) recording_.erase(recording);
  traces_.emplace_back(request_id, std::move(packed));
  if (traces_.size() <= kept_) return;
  forgotten_.push_back(std::move(traces_.front().first));
  traces_.pop_front();
  if (forgotten_.size() > kForgottenNames) forgotten_.pop_front();
}

absl::StatusOr<v1::Trace> Tracer::Get(const std::string& request_id) const {
  std::string packed;
  {
    MutexLock lock(mu_);
    const auto found =
        std::find_if(traces_.rbegin(), traces_.rend(), [&](const auto& trace) { return trace.first == request_id; });
    if (found == traces_.rend()) return Missing(request_id);
    packed = found->second;
  }
  v1::Trace trace;
  trace.ParseFromString(packed);
  return trace;
}

absl::Status Tracer::Missing(const std::string& request_id) const {
  const std::string request = absl::StrCat("request_id: request ", Printable(request_id));
  if (recording_.contains(request_id)) {
    return WithRetryAfter(absl::NotFoundError(absl::StrCat(request, " has not ended")), kNotWholeYet);
  }
  if (std::find(forgotten_.begin(), forgotten_.end(), request_id) != forgotten_.end()) {
    return absl::NotFoundError(absl::StrCat(request, " is not kept any more: the router keeps the last ", kept_,
                                            " traces (its option traces_kept)"));
  }
  if (mode_ == TraceMode::kOff) {
    return absl::NotFoundError(
        absl::StrCat(request, " was not recorded: this router records none; start it with --trace=asked or all"));
  }
  return absl::NotFoundError(absl::StrCat(
      request, " was not recorded",
      mode_ == TraceMode::kAll ? "" : ": this router records what asks for it, as runahead generate --trace does"));
}

}  // namespace runahead
