#include "worker/prefill/service/prefill_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "server/base/printable.h"
#include "server/rpc/trace_proto.h"
#include "worker/link/metered_edge.h"
#include "worker/metrics/link_metrics.h"
#include "worker/model/check_sampling.h"
#include "worker/prefill/lease_prefix.h"
#include "worker/prefill/service/job_from_proto.h"
#include "worker/service/proto_convert.h"

namespace runahead {
namespace {

// Only the tail draws.
absl::Status CheckDraw(const PrefillJob& job, int64_t vocab) {
  if (!job.tail()) return absl::OkStatus();
  RUNAHEAD_RETURN_IF_ERROR(CheckSampling(job.sampling, vocab));
  return CheckDrawRules(job.rules, vocab);
}

// What the stage does not look at itself.
JobEnd CheckStart(const PrefillJob& job, int64_t vocab) {
  const bool lacks_predecessor = job.part > 0 && job.predecessor == nullptr;
  const bool lacks_successor = job.part >= 0 && !job.tail() && job.successor == nullptr;
  if (lacks_predecessor || lacks_successor) {
    return {absl::UnavailableError(
                absl::StrCat("this worker has no edge to its ", lacks_predecessor ? "predecessor" : "successor")),
            JobCause::kPeer};
  }
  return {CheckDraw(job, vocab), JobCause::kRouter};
}

v1::JobCause ToProto(JobCause cause) {
  switch (cause) {
    case JobCause::kOwn:
      return v1::JOB_CAUSE_OWN;
    case JobCause::kPeer:
      return v1::JOB_CAUSE_PEER;
    case JobCause::kRouter:
      return v1::JOB_CAUSE_ROUTER;
    case JobCause::kDecode:
      return v1::JOB_CAUSE_DECODE;
  }
  return v1::JOB_CAUSE_UNSPECIFIED;
}

// A death is often known here before the router hears of it: then the message names who died.
absl::Status NamingTheDead(const PrefillJob& job, const JobEnd& end) {
  const absl::Status& status = end.status;
  if (end.cause == JobCause::kDecode) {
    return absl::Status(status.code(), absl::StrCat("hand-off to ", job.decode_name, ": ", status.message()));
  }
  if (end.cause != JobCause::kPeer || !absl::IsUnavailable(status)) return status;
  const auto died = [](const std::shared_ptr<Edge>& edge) { return edge != nullptr && !edge->Health().ok(); };
  if (died(job.predecessor)) {
    return absl::UnavailableError(absl::StrCat("its predecessor ", job.predecessor_name, ": ", status.message()));
  }
  if (died(job.successor)) {
    return absl::UnavailableError(absl::StrCat("its successor ", job.successor_name, ": ", status.message()));
  }
  return status;
}

}  // namespace

void PrefillControl::Bind(PrefillStage* stage, std::function<void(v1::ControlReport)> report) {
  stage_ = stage;
  report_ = std::move(report);
}

void PrefillControl::OnFormLine(const v1::FormLine& line) {
  for (const v1::WorkerLife& lost : line.lost()) {
    CloseEdges(
        [&lost](const PeerId& peer) { return peer.incarnation == lost.incarnation() && peer.epoch == lost.epoch(); });
    paths_.Forget(lost.incarnation(), lost.epoch());
  }
  if (line.has_predecessor()) OpenEdge(line.predecessor(), "predecessor");
  if (line.has_successor()) OpenEdge(line.successor(), "successor");
  if (line.question() != 0) ReportPaths(line.question());
}

void PrefillControl::OpenEdge(const v1::PeerAddress& address, const char* what) {
  const PeerId peer{address.link_address(), address.incarnation(), address.device_link(), address.epoch(),
                    address.generation()};
  if (known_.contains(peer.key())) return;
  LogInfo("line", what, " is ", address.name(), ", ", Describe(peer.key()));
  // The old making of the edge ends here as it does at the other end: what was started before this line belongs to it.
  CloseEdges([&peer](const PeerId& other) {
    return other.incarnation == peer.incarnation && other.epoch == peer.epoch && other.generation < peer.generation;
  });
  Known& known = known_[peer.key()];
  known.peer = peer;
  known.name = address.name();
  auto edge = edges_.Open(peer);
  if (edge.ok()) {
    known.edge = MeterEdge(*edge, std::make_shared<LinkMetrics>(registry_, address.name()));
  } else {
    LogWarning("line", "no edge to ", what, " ", address.name(), ": ", edge.status().ToString());
    known.failure = edge.status();
  }
}

const PrefillControl::Known* PrefillControl::Find(const v1::WorkerLife& worker) const {
  for (const auto& [key, known] : known_) {
    const bool same = key.incarnation == worker.incarnation() && key.epoch == worker.epoch();
    if (same && known.edge != nullptr) return &known;
  }
  return nullptr;
}

void PrefillControl::CloseEdges(const std::function<bool(const PeerId&)>& meant) {
  for (auto it = known_.begin(); it != known_.end();) {
    const auto current = it++;
    if (!meant(current->second.peer)) continue;
    if (current->second.edge != nullptr) edges_.Close(current->second.peer);
    known_.erase(current);
  }
}

// A job that failed over a path reports its end after the path's health has changed, and the router asks after that
// report: what the answer does not tell of such a path has nothing to do with the failure.
void PrefillControl::ReportPaths(uint64_t question) {
  v1::ControlReport report;
  v1::PathStates& states = *report.mutable_paths();
  states.set_question(question);
  for (auto& [key, known] : known_) {
    const absl::Status health = known.edge == nullptr ? known.failure : known.edge->Health();
    v1::PathCondition now = v1::PATH_CONDITION_OPENING;
    if (!health.ok()) {
      now = v1::PATH_CONDITION_BROKEN;
    } else if (known.edge->Opened()) {
      now = v1::PATH_CONDITION_UP;
    }
    if (std::exchange(known.told, now) != now) AddState(states, known.peer, now, health);
  }
  for (const DecodePaths::State& path : paths_.TakeChanges(MonotonicNow())) {
    const bool up = path.status.ok();
    AddState(states, path.decode, up ? v1::PATH_CONDITION_UP : v1::PATH_CONDITION_BROKEN, path.status);
  }
  if (states.states_size() > 0 || question != 0) report_(std::move(report));
}

void PrefillControl::AddState(v1::PathStates& states, const PeerId& peer, v1::PathCondition condition,
                              const absl::Status& status) {
  v1::PathState& state = *states.add_states();
  state.mutable_peer()->set_incarnation(peer.incarnation);
  state.mutable_peer()->set_epoch(peer.epoch);
  state.set_generation(peer.generation);
  state.set_condition(condition);
  state.set_message(std::string(status.message()));
}

void PrefillControl::OnStart(const v1::StartJob& start) {
  PrefillJob job = JobFromProto(start, MonotonicNow());
  if (const Known* known = Find(start.predecessor()); job.part > 0 && known != nullptr) {
    job.predecessor = known->edge;
    job.predecessor_name = known->name;
  }
  if (const Known* known = Find(start.successor()); !job.tail() && known != nullptr) {
    job.successor = known->edge;
    job.successor_name = known->name;
  }
  const bool begins_behind = job.part == 0 && !job.bounds.empty() && job.bounds[0] > 0;
  if (begins_behind && job.lease.has_value()) {
    job.prefix = std::make_shared<LeasePrefix>(paths_, job, stage_->kv_form());
  }
  const JobEnd refused = CheckStart(job, stage_->vocab());
  if (!refused.status.ok()) {
    if (job.predecessor != nullptr) job.predecessor->Drop(job.id);
    return ReportDone(job, refused);
  }
  stage_->Start(std::move(job));
}

void PrefillControl::OnCancel(uint64_t job) {
  stage_->Cancel(job, absl::CancelledError("the router cancelled the job"));
}

void PrefillControl::OnFirstToken(const PrefillJob& job, const Sampled& token, double queue_s, double prefill_s) {
  v1::ControlReport report;
  v1::FirstToken& first = *report.mutable_first_token();
  first.set_job(job.id);
  *first.mutable_token() = SampledToProto(token);
  first.set_queue_s(queue_s);
  first.set_prefill_s(prefill_s);
  report_(std::move(report));
}

void PrefillControl::OnPromptScores(const PrefillJob& job, int64_t index,
                                    const std::vector<TokenLogprobPairs>& scores) {
  v1::ControlReport report;
  v1::PromptScores& message = *report.mutable_scores();
  message.set_job(job.id);
  message.set_index(static_cast<int32_t>(index));
  for (const TokenLogprobPairs& score : scores) *message.add_logprobs() = LogprobsToProto(score);
  report_(std::move(report));
}

void PrefillControl::OnDone(const PrefillJob& job, const JobEnd& end, const JobTimes& times) {
  const bool in_chain = job.predecessor != nullptr || job.successor != nullptr;
  if (end.status.ok()) {
    metrics_.ObserveCompute(job.part, absl::Seconds(times.compute_s));
    metrics_.ObserveWait(job.part, absl::Seconds(times.wait_s));
    metrics_.ObserveTransfer(job.part, absl::Seconds(times.transfer_s), absl::Seconds(times.hidden_s));
    if (in_chain && times.compute_s > 0) metrics_.SetImbalance(1 + times.wait_s / times.compute_s);
    metrics_.ObserveRingStall(absl::Seconds(times.ring_stall_s));
    metrics_.CountTokens(job.tokens());
    if (times.interleaved) metrics_.CountInterleaved();
  } else if (!absl::IsCancelled(end.status)) {
    LogWarning("prefill", "request ", Printable(job.request_id), " (job ", job.id, "): ", end.status.ToString());
  }
  ReportDone(job, end);
}

void PrefillControl::ReportDone(const PrefillJob& job, const JobEnd& end) {
  v1::ControlReport message;
  v1::JobDone& done = *message.mutable_done();
  done.set_job(job.id);
  if (!end.status.ok()) {
    const absl::Status status = NamingTheDead(job, end);
    done.set_code(static_cast<int>(status.code()));
    done.set_message(std::string(status.message()));
    done.set_cause(ToProto(end.cause));
  }
  if (job.spans != nullptr) *done.mutable_spans() = SpansToProto(job.spans->Take());
  report_(std::move(message));
}

}  // namespace runahead
