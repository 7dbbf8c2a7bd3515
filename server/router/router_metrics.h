// What a router counts. Names and labels: docs/metrics.md.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
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

// kDeadline: its first token was expected behind its deadline.
enum class AdmissionRejection { kQueueFull, kNeverFits, kNoWorkers, kDraining, kDeadline };
inline constexpr int kAdmissionRejections = 5;

enum class WorkerRole { kPrefill, kDecode };
inline constexpr int kWorkerRoles = 2;

// kRefused: reachable, but does not agree with the pool (model, dtype, layout of KV, version).
// kInterrupted: its control stream broke, and is being resumed.
enum class WorkerState { kConnecting, kReady, kRefused, kLost, kDraining, kInterrupted };
inline constexpr int kWorkerStates = 6;

// Of an edge of the line between two ready workers. kOpening: the ends have not both said that it is up. kBroken: one
// says that it is not, and it is to be made anew.
enum class EdgeState { kOpening, kUp, kBroken };
inline constexpr int kEdgeStates = 3;
using EdgeCounts = std::array<int64_t, kEdgeStates>;  // by EdgeState

// Why a request went on with other workers: one went away, one lives and failed, or two did not reach each other.
enum class FailoverCause { kWorkerLost, kWorkerFailed, kPathBroken };
inline constexpr int kFailoverCauses = 3;

// How far the request was: kPrefill, its answer had no token yet; kDecode, it had some, and goes on behind them.
enum class FailoverStage { kPrefill, kDecode };
inline constexpr int kFailoverStages = 2;

// What came of asking a decode worker that drains to move a sequence to another. kMoved. kNoRoom: no other one had a
// slot and memory for it now. kFailed: the worker could not, or the other one did not take it, and it goes on where it
// was; or its stream ended with an error of the worker's own. kEnded: its answer ended first, was cancelled, or was
// past its deadline. kLost: its worker was lost first.
enum class MoveResult { kMoved, kNoRoom, kFailed, kEnded, kLost };
inline constexpr int kMoveResults = 5;

// What came of asking a decode worker that may have KV of a prompt's beginning for the whole request. kTaken. kGone: it
// has not as much of it as to be worth it. kRefused: it has no slot or no memory now, or cannot be asked. kSlower:
// it has it without X, and the answer's steps would take longer for that than a chain does for the whole prompt.
enum class ContinuationResult { kTaken, kGone, kRefused, kSlower };
inline constexpr int kContinuationResults = 4;

// A decode worker has KV of a prompt's beginning. The rest is computed by that worker (kDecode), or by a chain that
// gets the KV from it (kChain).
enum class RestBy { kDecode, kChain };
inline constexpr int kRestsBy = 2;

// What a request waits for. kSession: for a place among those that are starting, or running. kPlace: for prefill
// workers that take another prompt. kSlot, kMemory: for a decode worker that steps another sequence, or has the KV
// memory. kWorker: for workers or paths that were lost. kBeginning: for a prompt that begins alike.
enum class QueueCause { kSession, kPlace, kSlot, kMemory, kWorker, kBeginning };
inline constexpr int kQueueCauses = 6;
using QueueCounts = std::array<int64_t, kQueueCauses>;  // by QueueCause

// How a decode worker's slot is used. kRunning: its steps run a sequence there. kPromised: a request has it whose KV
// has not come yet, or that has not been in a step. kParked: its sequence waits for memory.
enum class SlotState { kRunning, kPromised, kFree, kParked };
inline constexpr int kSlotStates = 4;
using SlotCounts = std::array<int64_t, kSlotStates>;  // by SlotState

// Thread-safe; lives no longer than the registry.
class RouterMetrics {
 public:
  // `model` is the one model this router serves. `registry` must outlive this.
  RouterMetrics(MetricRegistry& registry, const std::string& model);

  // A prompt is to run on a chain of so many workers, or on none, where its decode worker computes it: from here on
  // there are series for it, so that rate() sees its first observation where a scrape comes before that. Those of up to
  // kUsualChainWidth are there from the start, of the times to a first token those of prompts up to 4,096 tokens: a
  // longer one's takes long enough to be seen at 0.
  void ChainPlanned(int64_t prompt_tokens, int chain_width);

  void ObserveTimeToFirstToken(int64_t prompt_tokens, int chain_width, absl::Duration ttft);
  void ObserveTtftStage(TtftStage stage, int chain_width, absl::Duration spent);
  void ObserveInterTokenLatency(absl::Duration between_tokens);
  void ObserveTimePerOutputToken(absl::Duration mean);  // of a whole request, the first token left out
  // From a request's first token to its second.
  void ObserveFirstGap(absl::Duration gap);
  // A request has waited, and does so no more, whatever came of it.
  void ObserveQueue(QueueCause cause, absl::Duration waited);
  void ObserveCancelToFree(absl::Duration until_freed);

  // A request's call: from its arrival until its client has all of the answer, or is gone.
  void CallBegan();
  void CallEnded();
  // How many of these there are, and how many requests wait for admission.
  int64_t calls_in_flight() const { return static_cast<int64_t>(requests_in_flight_.Value()); }
  int64_t queue_depth() const { return static_cast<int64_t>(queue_depth_.Value() + low_queue_depth_.Value()); }
  // Once for every request: its outcome is known.
  void RequestFinished(absl::StatusCode code, absl::Duration duration);

  void CountPromptTokens(int64_t tokens);
  void CountGeneratedTokens(int64_t tokens);
  // A request has its first token: of all of its output so many were expected.
  void CountExpectedOutput(int64_t tokens);
  void CountPartitionLookup(PartitionLookup result);
  void CountTableReload(TableReload result);
  void CountAdmissionRejection(AdmissionRejection reason);
  // So many requests were overtaken by one.
  void CountOvertaken(int64_t requests);

  void CountFailover(FailoverCause cause, FailoverStage stage);
  // Of a move's KV the other worker has taken so many bytes.
  void CountMove(MoveResult result, int64_t bytes);
  void CountContinuation(ContinuationResult result);
  // A request waits for the prompt of another, which begins alike.
  void CountBeginningAwaited();
  // Of a prompt so many tokens need not be computed.
  void CountKnownPromptTokens(RestBy rest, int64_t tokens);
  // Of all prompts so many tokens since the start: accepted, and known where this one computed the rest.
  int64_t prompt_tokens() const { return static_cast<int64_t>(prompt_tokens_.Value()); }
  int64_t known_prompt_tokens(RestBy rest) const {
    return static_cast<int64_t>(known_prompt_tokens_[static_cast<int>(rest)]->Value());
  }
  // A first token came so much sooner than it was expected of a chain that computes all: as predicted, and as it was
  // then. Less than 0: later.
  void CountSavedByKnown(absl::Duration predicted, absl::Duration measured);
  // The router's index of beginnings has so many tokens, and takes so many bytes.
  void SetKnownIndex(int64_t tokens, int64_t bytes);
  // How many more requests may be tried again now.
  void SetRetryBudget(double retries);

  // Of them, `low` are of low priority.
  void SetQueue(const QueueCounts& requests, int64_t low);
  // Sets what the decode worker of this name has. It has series from now on. Workers beyond the first 64 share theirs.
  void SetSlots(const std::string& worker, const SlotCounts& slots) RUNAHEAD_EXCLUDES(slots_mu_);
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
  Histogram& first_gap_;
  Histogram& cancel_to_free_;
  std::array<Counter*, kCodes> requests_;
  Counter& prompt_tokens_;
  Counter& generated_tokens_;
  Counter& expected_output_tokens_;
  std::array<Counter*, kPartitionLookups> partition_lookups_;
  std::array<Counter*, kTableReloads> table_reloads_;
  std::array<Counter*, kAdmissionRejections> admission_rejections_;
  Counter& overtaken_;
  std::array<std::array<Counter*, kFailoverStages>, kFailoverCauses> failovers_;
  std::array<Counter*, kMoveResults> moves_, moved_bytes_;
  std::array<Counter*, kContinuationResults> continuations_;
  Counter& beginnings_awaited_;
  std::array<Counter*, kRestsBy> known_prompt_tokens_;
  Counter &known_seconds_predicted_, &known_seconds_measured_, &known_seconds_lost_;
  Gauge &known_index_tokens_, &known_index_bytes_;
  Gauge& retry_budget_;
  Gauge& requests_in_flight_;
  Gauge& queue_depth_;
  Gauge& low_queue_depth_;
  std::array<Gauge*, kQueueCauses> queue_requests_;
  std::array<Counter*, kQueueCauses> queue_seconds_;
  std::array<Counter*, kQueueCauses> queue_waits_;
  Mutex slots_mu_;
  struct SlotSeries {
    std::array<Gauge*, kSlotStates> gauges = {};  // null: not made yet
    std::map<std::string, SlotCounts> workers;    // that have any slots, by name
  };
  std::map<std::string, SlotSeries> slots_ RUNAHEAD_GUARDED_BY(slots_mu_);  // by the label's value
  std::array<Gauge*, kEdgeStates> edges_;
  Gauge& broken_edges_;
  Gauge& broken_handoffs_;
  std::array<std::array<Gauge*, kWorkerStates>, kWorkerRoles> workers_;
  std::array<Gauge*, kWorkerRoles> ejected_;
  std::array<Gauge*, kWorkerRoles> suspected_;
};

}  // namespace runahead
