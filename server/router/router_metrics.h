// What a router counts. Names and labels: docs/metrics.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/metrics.h"

namespace runahead {

inline constexpr int kPromptClasses = 6;

// 0 for up to 256 prompt tokens, then up to 1,024, 4,096, 16,384, 65,536, and 5 for more.
int PromptClassIndex(int64_t tokens);
// "le256", "le1k", "le4k", "le16k", "le64k", "more".
absl::string_view PromptClassName(int index);

// The stages of a time to first token on the router's clock; they follow each other and add up to it. kWorkerQueue is
// what the workers report as queueing inside.
enum class TtftStage { kQueue, kTokenize, kPlan, kReserve, kWorkerQueue, kPrefill, kFirstToken };
inline constexpr int kTtftStages = 7;
absl::string_view TtftStageName(TtftStage stage);  // "queue", ..., "first_token"

// How the parts of a prompt were found: at a searched length, between two, beyond the table's ends by its trend or,
// without one, as at the end, evenly without a table, or given in the request.
enum class PartitionLookup { kSearched, kInterpolated, kExtrapolated, kClamped, kEven, kGiven };
inline constexpr int kPartitionLookups = 6;

// kError: the changed file is not a table that this router can use, so the one before stays.
enum class TableReload { kOk, kError };
inline constexpr int kTableReloads = 2;

enum class AdmissionRejection { kQueueFull, kNeverFits, kNoWorkers, kDraining };
inline constexpr int kAdmissionRejections = 4;

enum class WorkerRole { kPrefill, kDecode };
inline constexpr int kWorkerRoles = 2;

// kRefused: reachable, but does not agree with the pool (model, dtype, layout of KV, version).
enum class WorkerState { kConnecting, kReady, kRefused, kLost, kDraining };
inline constexpr int kWorkerStates = 5;

// Of an edge of the line between two ready workers. kOpening: the ends have not both said that it is up. kBroken: one
// says that it is not, and it is to be made anew.
enum class EdgeState { kOpening, kUp, kBroken };
inline constexpr int kEdgeStates = 3;
using EdgeCounts = std::array<int64_t, kEdgeStates>;  // by EdgeState

// Why a request went on with other workers: one went away, one lives and failed, or two did not reach each other.
enum class FailoverCause { kWorkerLost, kWorkerFailed, kPathBroken };
inline constexpr int kFailoverCauses = 3;

// Thread-safe; lives no longer than the registry.
class RouterMetrics {
 public:
  // `model` is the one model this router serves. `registry` must outlive this.
  RouterMetrics(MetricRegistry& registry, const std::string& model);

  // A prompt is to run on a chain of so many workers: from here on there are series for it, before it has anything to
  // observe, so that rate() sees its first observation. Those of up to kUsualChainWidth are there from the start.
  void ChainPlanned(int64_t prompt_tokens, int chain_width);

  void ObserveTimeToFirstToken(int64_t prompt_tokens, int chain_width, absl::Duration ttft);
  void ObserveTtftStage(TtftStage stage, int chain_width, absl::Duration spent);
  void ObserveInterTokenLatency(absl::Duration between_tokens);
  void ObserveTimePerOutputToken(absl::Duration mean);  // of a whole request, the first token left out
  void ObserveCancelToFree(absl::Duration until_freed);

  // A request's call: from its arrival until its client has all of the answer, or is gone.
  void CallBegan();
  void CallEnded();
  // Once for every request: its outcome is known.
  void RequestFinished(absl::StatusCode code, absl::Duration duration);

  void CountPromptTokens(int64_t tokens);
  void CountGeneratedTokens(int64_t tokens);
  void CountPartitionLookup(PartitionLookup result);
  void CountTableReload(TableReload result);
  void CountAdmissionRejection(AdmissionRejection reason);

  void CountFailover(FailoverCause cause);
  // How many more requests may be tried again now.
  void SetRetryBudget(double retries);

  void SetQueueDepth(int64_t requests);
  // Edges of the line, and ways of hand-off, that do not work now.
  void SetBrokenPaths(int64_t edges, int64_t handoffs);
  void SetEdges(const EdgeCounts& edges);
  void SetWorkers(WorkerRole role, WorkerState state, int64_t workers);
  void SetEjected(WorkerRole role, int64_t workers);
  void SetSuspected(WorkerRole role, int64_t workers);

 private:
  static constexpr int kCodes = 17;  // of gRPC
  static constexpr int kOutcomes = 5;

  Histogram& TimeToFirstToken(int prompt_class, int chain_width);
  Histogram& TtftStageOf(int stage, int chain_width);

  MetricRegistry& registry_;
  const std::string model_;
  std::array<HistogramsOnUse, kPromptClasses> time_to_first_token_;
  std::array<HistogramsOnUse, kTtftStages> ttft_stage_;
  std::array<Histogram*, kOutcomes> request_duration_;
  Histogram& time_per_output_token_;
  Histogram& inter_token_latency_;
  Histogram& cancel_to_free_;
  std::array<Counter*, kCodes> requests_;
  Counter& prompt_tokens_;
  Counter& generated_tokens_;
  std::array<Counter*, kPartitionLookups> partition_lookups_;
  std::array<Counter*, kTableReloads> table_reloads_;
  std::array<Counter*, kAdmissionRejections> admission_rejections_;
  std::array<Counter*, kFailoverCauses> failovers_;
  Gauge& retry_budget_;
  Gauge& requests_in_flight_;
  Gauge& queue_depth_;
  std::array<Gauge*, kEdgeStates> edges_;
  Gauge& broken_edges_;
  Gauge& broken_handoffs_;
  std::array<std::array<Gauge*, kWorkerStates>, kWorkerRoles> workers_;
  std::array<Gauge*, kWorkerRoles> ejected_;
  std::array<Gauge*, kWorkerRoles> suspected_;
};

}  // namespace runahead
