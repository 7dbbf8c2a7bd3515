#include "server/router/router_metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

struct PromptClassBound {
  int64_t tokens;
  absl::string_view name;
};
constexpr PromptClassBound kPromptClassBounds[kPromptClasses] = {
    {256, "le256"}, {1024, "le1k"}, {4096, "le4k"}, {16384, "le16k"}, {65536, "le64k"}, {INT64_MAX, "more"},
};
constexpr int kUsualPromptClasses = 3;  // of the first so many there are series from the start
constexpr const char* kStageNames[kTtftStages] = {"queue",        "tokenize", "plan",       "reserve",
                                                  "worker_queue", "prefill",  "first_token"};
constexpr const char* kLookupNames[kPartitionLookups] = {"searched", "interpolated", "extrapolated",
                                                         "clamped",  "even",         "given"};
constexpr const char* kReloadNames[kTableReloads] = {"ok", "error"};
constexpr const char* kRejectionNames[kAdmissionRejections] = {"queue_full", "never_fits", "no_workers", "draining",
                                                               "deadline"};
constexpr const char* kRoleNames[kWorkerRoles] = {"prefill", "decode"};
constexpr const char* kStateNames[kWorkerStates] = {"connecting", "ready",    "refused",
                                                    "lost",       "draining", "interrupted"};
constexpr const char* kEdgeNames[kEdgeStates] = {"opening", "up", "broken"};
constexpr const char* kFailoverNames[kFailoverCauses] = {"worker_lost", "worker_failed", "path_broken"};
constexpr const char* kMoveNames[kMoveResults] = {"moved", "no_room", "failed", "ended", "lost"};
constexpr const char* kContinuationNames[kContinuationResults] = {"taken", "gone", "refused", "slower"};
constexpr const char* kRestNames[kRestsBy] = {"decode", "chain"};
constexpr const char* kFailoverStageNames[kFailoverStages] = {"prefill", "decode"};
constexpr const char* kCauseNames[kQueueCauses] = {"session", "place", "slot", "memory", "worker", "beginning"};
constexpr const char* kSlotNames[kSlotStates] = {"running", "promised", "free", "parked"};
constexpr size_t kNamedWorkers = 64;
constexpr const char* kOutcomeNames[] = {"ok", "cancelled", "deadline", "refused", "failed"};

// What the request's end means to the one who sent it.
int OutcomeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kCancelled:
      return 1;
    case absl::StatusCode::kDeadlineExceeded:
      return 2;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
      return 3;
    default:
      return 4;
  }
}

int WidthIndex(int chain_width) {
  return std::clamp(chain_width, 0, kMaxChainWidth);
}

constexpr char kBrokenPathsHelp[] = "Paths between living workers that do not work now";
constexpr char kSavedHelp[] = "By which first tokens came sooner for a known beginning";

}  // namespace

int PromptClassIndex(int64_t tokens) {
  int index = 0;
  while (tokens > kPromptClassBounds[index].tokens) ++index;
  return index;
}

absl::string_view PromptClassName(int index) {
  return kPromptClassBounds[index].name;
}

absl::string_view TtftStageName(TtftStage stage) {
  return kStageNames[static_cast<int>(stage)];
}

RouterMetrics::RouterMetrics(MetricRegistry& registry, const std::string& model)
    : registry_(registry),
      model_(model),
      time_per_output_token_(registry.AddHistogram("runahead_time_per_output_token_seconds",
                                                   "Mean time of a request's tokens after the first", TokenBuckets(),
                                                   {{"model", model}})),
      inter_token_latency_(registry.AddHistogram("runahead_inter_token_latency_seconds",
                                                 "Time between two tokens of a request", TokenBuckets(),
                                                 {{"model", model}})),
      first_gap_(registry.AddHistogram("runahead_first_gap_seconds", "From a request's first token to its second",
                                       TtftBuckets(), {{"model", model}})),
      cancel_to_free_(registry.AddHistogram("runahead_cancel_to_free_seconds",
                                            "From a cancellation until all memory of the request was free",
                                            TtftBuckets())),
      prompt_tokens_(registry.AddCounter("runahead_prompt_tokens_total", "Prompt tokens of accepted requests")),
      generated_tokens_(registry.AddCounter("runahead_generated_tokens_total", "Tokens generated")),
      expected_output_tokens_(registry.AddCounter("runahead_expected_output_tokens_total",
                                                  "Output tokens that were expected of requests with a first token")),
      overtaken_(registry.AddCounter("runahead_overtaken_requests_total",
                                     "How often one whose turn was later was computed before a request")),
      beginnings_awaited_(registry.AddCounter("runahead_beginnings_awaited_total",
                                              "Requests that waited for the prompt of another, which begins alike")),
      known_seconds_predicted_(
          registry.AddCounter("runahead_known_seconds_saved_total", kSavedHelp, {{"as", "predicted"}})),
      known_seconds_measured_(
          registry.AddCounter("runahead_known_seconds_saved_total", kSavedHelp, {{"as", "measured"}})),
      known_seconds_lost_(registry.AddCounter("runahead_known_seconds_lost_total",
                                              "By which first tokens came later for a known beginning")),
      known_index_tokens_(
          registry.AddGauge("runahead_known_index_tokens", "Tokens of sequences that decode workers may have KV of")),
      known_index_bytes_(registry.AddGauge("runahead_known_index_bytes", "Memory that the index of these takes")),
      retry_budget_(registry.AddGauge("runahead_retry_budget", "Requests that may be tried again now")),
      requests_in_flight_(registry.AddGauge("runahead_requests_in_flight",
                                            "Requests whose client does not have all of its answer yet")),
      queue_depth_(
          registry.AddGauge("runahead_queue_depth", "Requests that wait for admission", {{"priority", "normal"}})),
      low_queue_depth_(
          registry.AddGauge("runahead_queue_depth", "Requests that wait for admission", {{"priority", "low"}})),
      broken_edges_(registry.AddGauge("runahead_broken_paths", kBrokenPathsHelp, {{"kind", "edge"}})),
      broken_handoffs_(registry.AddGauge("runahead_broken_paths", kBrokenPathsHelp, {{"kind", "handoff"}})) {
  for (int width = 1; width <= kUsualChainWidth; ++width) {
    for (int i = 0; i < kUsualPromptClasses; ++i) TimeToFirstToken(i, width);
    for (int i = 0; i < kTtftStages; ++i) TtftStageOf(i, width);
  }
  for (int i = 0; i < kOutcomes; ++i) {
    request_duration_[i] = &registry.AddHistogram("runahead_request_duration_seconds", "Whole requests", TtftBuckets(),
                                                  {{"model", model}, {"outcome", kOutcomeNames[i]}});
  }
  for (int i = 0; i < kQueueCauses; ++i) {
    queue_requests_[i] =
        &registry.AddGauge("runahead_queue_requests", "Requests that wait, by what for", {{"cause", kCauseNames[i]}});
    queue_seconds_[i] = &registry.AddCounter("runahead_queue_seconds_total", "How long requests waited, by what for",
                                             {{"cause", kCauseNames[i]}});
    queue_waits_[i] = &registry.AddCounter("runahead_queue_waits_total", "How often requests waited, by what for",
                                           {{"cause", kCauseNames[i]}});
  }
  for (int i = 0; i < kCodes; ++i) {
    requests_[i] =
        &registry.AddCounter("runahead_requests_total", "Requests ended, by gRPC code",
                             {{"model", model}, {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(i))}});
  }
  for (int i = 0; i < kPartitionLookups; ++i) {
    partition_lookups_[i] = &registry.AddCounter("runahead_partition_lookups_total", "How partitions were found",
                                                 {{"result", kLookupNames[i]}});
  }
  for (int i = 0; i < kTableReloads; ++i) {
    table_reloads_[i] = &registry.AddCounter("runahead_table_reloads_total", "Changes of the partition table's file",
                                             {{"result", kReloadNames[i]}});
  }
  for (int i = 0; i < kAdmissionRejections; ++i) {
    admission_rejections_[i] = &registry.AddCounter("runahead_admission_rejections_total", "Requests not admitted",
                                                    {{"reason", kRejectionNames[i]}});
  }
  for (int i = 0; i < kFailoverCauses; ++i) {
    for (int stage = 0; stage < kFailoverStages; ++stage) {
      failovers_[i][stage] =
          &registry.AddCounter("runahead_failovers_total", "Requests that went on with other workers",
                               {{"cause", kFailoverNames[i]}, {"stage", kFailoverStageNames[stage]}});
    }
  }
  for (int i = 0; i < kMoveResults; ++i) {
    moves_[i] = &registry.AddCounter("runahead_moves_total", "Sequences of draining decode workers, asked to move",
                                     {{"result", kMoveNames[i]}});
    moved_bytes_[i] = &registry.AddCounter("runahead_moved_bytes_total", "KV of such sequences that another took",
                                           {{"result", kMoveNames[i]}});
  }
  for (int i = 0; i < kContinuationResults; ++i) {
    continuations_[i] =
        &registry.AddCounter("runahead_continuations_total", "Decode workers asked to go on from a known beginning",
                             {{"result", kContinuationNames[i]}});
  }
  for (int i = 0; i < kRestsBy; ++i) {
    known_prompt_tokens_[i] = &registry.AddCounter("runahead_known_prompt_tokens_total",
                                                   "Prompt tokens whose KV a decode worker had from earlier requests",
                                                   {{"rest", kRestNames[i]}});
  }
  for (int i = 0; i < kEdgeStates; ++i) {
    edges_[i] = &registry.AddGauge("runahead_edges", "Edges of the line between ready workers, by how they stand",
                                   {{"state", kEdgeNames[i]}});
  }
  for (int role = 0; role < kWorkerRoles; ++role) {
    ejected_[role] = &registry.AddGauge("runahead_workers_ejected", "Ready workers that get no work for a time",
                                        {{"role", kRoleNames[role]}});
    suspected_[role] = &registry.AddGauge("runahead_workers_suspected", "Workers that answer and get nothing done",
                                          {{"role", kRoleNames[role]}});
    for (int state = 0; state < kWorkerStates; ++state) {
      workers_[role][state] = &registry.AddGauge("runahead_workers", "Workers the router knows",
                                                 {{"role", kRoleNames[role]}, {"state", kStateNames[state]}});
    }
  }
}

Histogram& RouterMetrics::TimeToFirstToken(int prompt_class, int chain_width) {
  return time_to_first_token_[prompt_class].At(WidthIndex(chain_width), [&](int index) -> Histogram& {
    return registry_.AddHistogram("runahead_time_to_first_token_seconds", "From a request's arrival to its first token",
                                  TtftBuckets(),
                                  {{"model", model_},
                                   {"prompt_class", std::string(PromptClassName(prompt_class))},
                                   {"chain_width", absl::StrCat(index)}});
  });
}

Histogram& RouterMetrics::TtftStageOf(int stage, int chain_width) {
  return ttft_stage_[stage].At(WidthIndex(chain_width), [&](int index) -> Histogram& {
    return registry_.AddHistogram("runahead_ttft_stage_seconds",
                                  "Consecutive stages of the time to first token, on the router's clock", TtftBuckets(),
                                  {{"stage", kStageNames[stage]}, {"chain_width", absl::StrCat(index)}});
  });
}

void RouterMetrics::ChainPlanned(int64_t prompt_tokens, int chain_width) {
  TimeToFirstToken(PromptClassIndex(prompt_tokens), chain_width);
  for (int i = 0; i < kTtftStages; ++i) TtftStageOf(i, chain_width);
}

void RouterMetrics::ObserveTimeToFirstToken(int64_t prompt_tokens, int chain_width, absl::Duration ttft) {
  TimeToFirstToken(PromptClassIndex(prompt_tokens), chain_width).Observe(absl::ToDoubleSeconds(ttft));
}

void RouterMetrics::ObserveTtftStage(TtftStage stage, int chain_width, absl::Duration spent) {
  TtftStageOf(static_cast<int>(stage), chain_width).Observe(absl::ToDoubleSeconds(spent));
}

void RouterMetrics::ObserveInterTokenLatency(absl::Duration between_tokens) {
  inter_token_latency_.Observe(absl::ToDoubleSeconds(between_tokens));
}

void RouterMetrics::ObserveTimePerOutputToken(absl::Duration mean) {
  time_per_output_token_.Observe(absl::ToDoubleSeconds(mean));
}

void RouterMetrics::ObserveCancelToFree(absl::Duration until_freed) {
  cancel_to_free_.Observe(absl::ToDoubleSeconds(until_freed));
}

void RouterMetrics::CallBegan() {
  requests_in_flight_.Increment();
}

void RouterMetrics::CallEnded() {
  requests_in_flight_.Decrement();
}

void RouterMetrics::RequestFinished(absl::StatusCode code, absl::Duration duration) {
  const int index = static_cast<int>(code);
  requests_[index >= 0 && index < kCodes ? index : static_cast<int>(absl::StatusCode::kUnknown)]->Increment();
  request_duration_[OutcomeOf(code)]->Observe(absl::ToDoubleSeconds(duration));
}

void RouterMetrics::CountPromptTokens(int64_t tokens) {
  prompt_tokens_.Increment(static_cast<double>(tokens));
}

void RouterMetrics::CountGeneratedTokens(int64_t tokens) {
  generated_tokens_.Increment(static_cast<double>(tokens));
}

void RouterMetrics::CountExpectedOutput(int64_t tokens) {
  expected_output_tokens_.Increment(static_cast<double>(tokens));
}

void RouterMetrics::CountPartitionLookup(PartitionLookup result) {
  partition_lookups_[static_cast<int>(result)]->Increment();
}

void RouterMetrics::CountTableReload(TableReload result) {
  table_reloads_[static_cast<int>(result)]->Increment();
}

void RouterMetrics::CountAdmissionRejection(AdmissionRejection reason) {
  admission_rejections_[static_cast<int>(reason)]->Increment();
}

void RouterMetrics::CountOvertaken(int64_t requests) {
  overtaken_.Increment(static_cast<double>(requests));
}

void RouterMetrics::CountFailover(FailoverCause cause, FailoverStage stage) {
  failovers_[static_cast<int>(cause)][static_cast<int>(stage)]->Increment();
}

void RouterMetrics::CountMove(MoveResult result, int64_t bytes) {
  moves_[static_cast<int>(result)]->Increment();
  moved_bytes_[static_cast<int>(result)]->Increment(static_cast<double>(bytes));
}

void RouterMetrics::CountContinuation(ContinuationResult result) {
  continuations_[static_cast<int>(result)]->Increment();
}

void RouterMetrics::CountBeginningAwaited() {
  beginnings_awaited_.Increment();
}

void RouterMetrics::CountKnownPromptTokens(RestBy rest, int64_t tokens) {
  known_prompt_tokens_[static_cast<int>(rest)]->Increment(static_cast<double>(tokens));
}

void RouterMetrics::CountSavedByKnown(absl::Duration predicted, absl::Duration measured) {
  known_seconds_predicted_.Increment(absl::ToDoubleSeconds(std::max(predicted, absl::ZeroDuration())));
  known_seconds_measured_.Increment(absl::ToDoubleSeconds(std::max(measured, absl::ZeroDuration())));
  known_seconds_lost_.Increment(absl::ToDoubleSeconds(std::max(-measured, absl::ZeroDuration())));
}

void RouterMetrics::SetKnownIndex(int64_t tokens, int64_t bytes) {
  known_index_tokens_.Set(static_cast<double>(tokens));
  known_index_bytes_.Set(static_cast<double>(bytes));
}

void RouterMetrics::SetRetryBudget(double retries) {
  retry_budget_.Set(retries);
}

void RouterMetrics::ObserveFirstGap(absl::Duration gap) {
  first_gap_.Observe(absl::ToDoubleSeconds(gap));
}

void RouterMetrics::ObserveQueue(QueueCause cause, absl::Duration waited) {
  queue_seconds_[static_cast<int>(cause)]->Increment(absl::ToDoubleSeconds(waited));
  queue_waits_[static_cast<int>(cause)]->Increment();
}

void RouterMetrics::SetQueue(const QueueCounts& requests, int64_t low) {
  int64_t depth = 0;
  for (int i = 0; i < kQueueCauses; ++i) {
    queue_requests_[i]->Set(static_cast<double>(requests[i]));
    depth += requests[i];
  }
  queue_depth_.Set(static_cast<double>(depth - low));
  low_queue_depth_.Set(static_cast<double>(low));
}

void RouterMetrics::SetSlots(const std::string& worker, const SlotCounts& slots) {
  const std::string label = registry_.Bounded("worker", worker, kNamedWorkers);
  MutexLock lock(slots_mu_);
  SlotSeries& series = slots_[label];
  series.workers[worker] = slots;
  if (slots == SlotCounts{}) series.workers.erase(worker);
  for (int state = 0; state < kSlotStates; ++state) {
    Gauge*& gauge = series.gauges[state];
    if (gauge == nullptr) {
      gauge = &registry_.AddGauge("runahead_decode_slots", "Slots of decode workers",
                                  {{"worker", label}, {"state", kSlotNames[state]}});
    }
    int64_t sum = 0;
    for (const auto& [name, counts] : series.workers) sum += counts[state];
    gauge->Set(static_cast<double>(sum));
  }
}

void RouterMetrics::SetBrokenPaths(int64_t edges, int64_t handoffs) {
  broken_edges_.Set(static_cast<double>(edges));
  broken_handoffs_.Set(static_cast<double>(handoffs));
}

void RouterMetrics::SetEdges(const EdgeCounts& edges) {
  for (int i = 0; i < kEdgeStates; ++i) edges_[i]->Set(static_cast<double>(edges[i]));
}

void RouterMetrics::SetWorkers(WorkerRole role, WorkerState state, int64_t workers) {
  workers_[static_cast<int>(role)][static_cast<int>(state)]->Set(static_cast<double>(workers));
}

void RouterMetrics::SetSuspected(WorkerRole role, int64_t workers) {
  suspected_[static_cast<int>(role)]->Set(static_cast<double>(workers));
}

void RouterMetrics::SetEjected(WorkerRole role, int64_t workers) {
  ejected_[static_cast<int>(role)]->Set(static_cast<double>(workers));
}

}  // namespace runahead
