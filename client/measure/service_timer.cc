#include "client/measure/service_timer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/generate/generate_result.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// Far above any prompt that somebody would search a table for: only a router that hangs takes longer.
constexpr absl::Duration kRunTimeout = absl::Minutes(15);
// Pauses of 1, 2, 4, .. ms before a worker's last job is known to have ended: a second in all.
constexpr int kTries = 11;
constexpr absl::Duration kBenchTokenizeTimeout = absl::Seconds(30);

constexpr char kWords[] =
    "The quick brown fox jumps over the lazy dog, while 0123456789 boxes of five dozen liquor jugs are packed. "
    "How do long prompts travel through a chain of workers? Each takes its part, and sends on what comes before.";

double Stage(const v1::Timing& timing, const char* name) {
  const auto found = timing.stages().find(name);
  return found == timing.stages().end() ? 0 : found->second;
}

absl::Status Explain(const absl::Status& status) {
  const auto field = BlamedField(status);
  if (field != "experiment") return status;
  return FieldError(absl::StatusCode::kInvalidArgument, *field,
                    absl::StrCat(absl::StripPrefix(status.message(), "experiment: "),
                                 "; measuring needs one that was started with it (also: runahead up --experiments)"));
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ServiceTimer::OrdinaryIds(v1::Inference::StubInterface& stub) {
  grpc::ClientContext context;
  SetTimeout(context, kBenchTokenizeTimeout);
  v1::TokenizeRequest request;
  request.set_text(kWords);
  request.set_without_begin(true);
  v1::TokenizeResponse response;
  RUNAHEAD_RETURN_IF_ERROR(FromGrpcStatus(stub.Tokenize(&context, request, &response)));
  if (response.ids().empty()) return absl::InternalError("the service made no token of a text");
  return std::vector<int32_t>(response.ids().begin(), response.ids().end());
}

ServiceTimer::ServiceTimer(v1::Inference::StubInterface& stub, std::vector<int32_t> ids)
    : stub_(stub), ids_(std::move(ids)), random_(std::random_device()()) {}

v1::GenerateRequest ServiceTimer::Request(absl::Span<const int64_t> parts) {
  v1::GenerateRequest request;
  const int64_t tokens = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  // Random, so that no two prompts begin alike: nothing kept from one could serve another.
  for (int64_t i = 0; i < tokens; ++i) request.mutable_token_ids()->add_ids(ids_[random_() % ids_.size()]);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(1);
  request.mutable_stop()->set_ignore_eos(true);
  for (const int64_t part : parts) request.mutable_experiment()->add_parts(static_cast<int32_t>(part));
  request.mutable_experiment()->set_schedule(v1::SCHEDULE_KVR);
  return request;
}

absl::StatusOr<double> ServiceTimer::Time(absl::Span<const int64_t> parts) {
  grpc::ClientContext context;
  SetTimeout(context, kRunTimeout);
  {
    MutexLock lock(mu_);
    if (cancelled_) return absl::CancelledError("interrupted");
    running_ = &context;
  }
  const auto stream = stub_.Generate(&context, Request(parts));
  GenerateResult answer;
  v1::GenerateResponse response;
  while (stream->Read(&response)) Add(std::move(response), answer);
  const absl::Status status = FromGrpcStatus(stream->Finish());
  {
    MutexLock lock(mu_);
    running_ = nullptr;
  }
  if (!status.ok()) return Explain(status);
  return Value(answer.started, answer.finished, parts);
}

absl::StatusOr<double> ServiceTimer::Value(const v1::Started& started, const v1::Finished& finished,
                                           absl::Span<const int64_t> parts) {
  const v1::Plan& plan = started.plan();
  if (!std::equal(parts.begin(), parts.end(), plan.parts().begin(), plan.parts().end())) {
    return absl::InternalError(absl::StrCat("asked for parts ", absl::StrJoin(parts, ","), ", the router took ",
                                            absl::StrJoin(plan.parts(), ",")));
  }
  chain_.assign(plan.workers().begin(), plan.workers().end());
  if (chain_.size() > workers_.size()) workers_ = chain_;
  const double seconds = Stage(finished.timing(), "prefill") + Stage(finished.timing(), "first_token");
  if (!(seconds > 0)) return absl::InternalError("the router's answer has no time for prefill and first_token");
  return seconds;
}

absl::StatusOr<double> ServiceTimer::TimeFromHead(absl::Span<const int64_t> parts) {
  for (int i = 0; i < kTries; ++i) {
    RUNAHEAD_ASSIGN_OR_RETURN(const double seconds, Time(parts));
    if (std::equal(chain_.begin(), chain_.end(), workers_.begin(), workers_.begin() + chain_.size())) return seconds;
    Pause(absl::Milliseconds(1 << i));
  }
  return absl::UnavailableError(absl::StrCat("the router takes ", absl::StrJoin(chain_, ", "),
                                             " in place of the first ", "workers of ", absl::StrJoin(workers_, ", "),
                                             ": others use them, or one was lost; try again when nobody does"));
}

void ServiceTimer::Pause(absl::Duration duration) {
  const absl::Time until = MonotonicNow() + duration;
  MutexLock lock(mu_);
  while (!cancelled_ && MonotonicNow() < until) changed_.WaitFor(mu_, until - MonotonicNow());
}

void ServiceTimer::Cancel() {
  MutexLock lock(mu_);
  cancelled_ = true;
  changed_.NotifyAll();
  if (running_ != nullptr) running_->TryCancel();
}

}  // namespace runahead
