// The place that a waiting request gets, and when it may expect its first token.
#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/rest_of_prompt.h"
#include "server/router/fleet_queue.h"

namespace runahead {
namespace {

ChainRequest Whole(int64_t tokens) {
  return {.tokens = tokens, .parts = {}};
}

// Of what the chain computes, by what whole prompts take on the same workers.
absl::Duration OfRest(const ChainRequest& request, absl::FunctionRef<absl::Duration(int64_t tokens)> of_whole) {
  const auto seconds = [&](int64_t tokens) { return absl::ToDoubleSeconds(of_whole(tokens)); };
  return absl::Seconds(SecondsOfChainRest(request.tokens, request.known_tokens, seconds));
}

// What the chain computes takes on workers that have nothing else to do. 0 where the table knows no time.
absl::Duration PredictedTime(const ChainRequest& request, int width, const TtftTable& times) {
  if (times.empty() || !times.knows(width)) return absl::ZeroDuration();
  return OfRest(request, [&](int64_t tokens) { return absl::Seconds(times.Seconds(tokens, width)); });
}

// On as many idle workers as is best; by what such prompts took lately, the least or what is likely, where the table
// knows nothing. 0 where nothing is known.
absl::Duration ShortestByTable(const ChainRequest& request, const TtftTable& times) {
  absl::Duration shortest = absl::InfiniteDuration();
  for (const int width : times.widths()) shortest = std::min(shortest, PredictedTime(request, width, times));
  return shortest;
}
absl::Duration ShortestTime(const ChainRequest& request, const TtftTable& times, const PrefillPace& pace) {
  if (!times.empty()) return ShortestByTable(request, times);
  return OfRest(request, [&](int64_t tokens) { return pace.Expect(tokens); });
}
absl::Duration LikelyTime(const ChainRequest& request, const TtftTable& times, const PrefillPace& pace) {
  if (!times.empty()) return ShortestByTable(request, times);
  return OfRest(request, [&](int64_t tokens) { return pace.Estimate(tokens); });
}

// Where nothing is known a token counts so much, and a prompt as PrefillPace::kLeastTokens at least: what counts then
// is how long prompts are beside each other.
constexpr double kUnknownSecondsPerToken = 1e-3;

double SecondsOr(absl::Duration known, int64_t tokens) {
  if (known > absl::ZeroDuration()) return absl::ToDoubleSeconds(known);
  return kUnknownSecondsPerToken * static_cast<double>(std::max(tokens, PrefillPace::kLeastTokens));
}

// On one worker that has nothing else to do; 0 where nothing is known.
absl::Duration TimeOnOne(const ChainRequest& request, const TtftTable& times, const PrefillPace& pace) {
  if (!times.empty()) return PredictedTime(request, 1, times);
  return OfRest(request, [&](int64_t tokens) { return pace.EstimateOnOne(tokens); });
}

// Until the segment has nothing else to do.
absl::Duration Backlog(absl::Span<const WorkerView> segment) {
  double backlog_s = 0;
  for (const WorkerView& worker : segment) backlog_s = std::max(backlog_s, worker.backlog_s);
  return absl::Seconds(backlog_s);
}

// Until it begins between the layers of what the worker computes, or behind that.
absl::Duration UntilItOvertakes(const ChainRequest& request, const WorkerView& worker) {
  return absl::Seconds(worker.interleave.Fits(request.expected_s) ? worker.layer_s : worker.place_s);
}

}  // namespace

ChainRequest FleetQueue::Timed(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table) const {
  MutexLock lock(mu_);
  return TimedBy(ticket, request, table.times());
}

ChainRequest FleetQueue::TimedBy(const Ticket& ticket, const ChainRequest& request, const TtftTable& times) const {
  // A pace changes with each prompt: those that wait are not compared by what was known at different times.
  const bool another = std::exchange(ticket.rest_, request.rest()) != request.rest();
  if (!ticket.known_ || another || !times.empty()) {
    const absl::Duration on_one = TimeOnOne(request, times, pace_);
    ticket.known_ = on_one > absl::ZeroDuration();
    ticket.expected_s_ = SecondsOr(on_one, request.rest());
    ticket.alone_s_ = SecondsOr(LikelyTime(request, times, pace_), request.rest());
  }
  ChainRequest timed = request;
  timed.expected_s = ticket.expected_s_;
  return timed;
}

bool FleetQueue::TimeAnew(std::map<Turn, Waiter>& waiters) const {
  bool any = false;
  for (auto& [turn, waiter] : waiters) {
    if (waiter.ticket->known_) continue;
    waiter.expected_s = TimedBy(*waiter.ticket, waiter.prompt, TtftTable()).expected_s;
    any = true;
  }
  return any;
}

absl::StatusOr<Placement> FleetQueue::TryPlan(const Ticket& ticket, const ChainRequest& request,
                                              const PartitionTable& table, Seen& seen) {
  MutexLock planning(planning_);
  while (true) {
    const Picture picture = TakePicture(ticket, request);
    seen = picture.seen;
    if (!picture.begins && !picture.may_overtake) return absl::ResourceExhaustedError("others wait already");
    std::vector<WorkerView> line(picture.line.workers.size());
    for (size_t i = 0; i < line.size(); ++i) {
      const FleetLine::Worker& worker = picture.line.workers[i];
      line[i].ready = worker.ready;
      line[i].linked_to_next = worker.linked_to_next;
      line[i].max_prefix_tokens = worker.max_prefix_tokens;
      worker.outlook.Fill(picture.now, line[i]);
    }
    absl::StatusOr<ChainPlan> plan = absl::ResourceExhaustedError("others wait already");
    if (picture.begins) {
      plan = planner_(request, table, line, picture.queue);
    } else if (std::optional<ChainPlan> overtaking = PlanOvertaking(request, line)) {
      plan = *std::move(overtaking);
    } else {
      CannotOvertake(ticket, seen);
    }
    if (absl::IsUnavailable(plan.status()) && !ticket.avoided_.empty()) {
      ticket.avoided_.clear();
      continue;
    }
    if (absl::IsUnavailable(plan.status())) {
      return absl::UnavailableError(absl::StrCat(plan.status().message(), ": ", fleet_.Notes(WorkerRole::kPrefill)));
    }
    RUNAHEAD_RETURN_IF_ERROR(plan.status());
    std::optional<Placement> placement = Take(ticket, *plan, request, table, picture, line);
    if (placement.has_value()) return *std::move(placement);
  }
}

FleetQueue::Picture FleetQueue::TakePicture(const Ticket& ticket, const ChainRequest& request) {
  MutexLock lock(mu_);
  Picture picture;
  picture.seen = {changes_, joins_};
  picture.now = clock_.Now();
  const auto own = waiting_.find(ticket.turn_);
  if (own != waiting_.end()) {
    own->second.turn = false;
    Estimate(own->second, request);
  }
  picture.queue = {WaitingForWorkers() - (own == waiting_.end() ? 0 : 1), arrivals_.PerSecond(picture.now)};
  const Lineup lineup = LineUp(ticket, request);
  picture.begins = WhoBegins(lineup.waiting) == lineup.own;
  if (!picture.begins && MayOvertake(request)) {
    picture.may_overtake = WhoOvertakes(lineup.overtaking, fleet_.OvertakingRoomS()) == lineup.own;
  }
  if (!picture.begins && !picture.may_overtake) return picture;
  picture.line = fleet_.Line(ticket.avoided_);
  return picture;
}

absl::Duration FleetQueue::ExpectFirstToken(const Ticket& ticket, const ChainRequest& request,
                                            const PartitionTable& table, bool decodes) const {
  MutexLock lock(mu_);
  FirstTokenView view;
  view.prefill_s = absl::ToDoubleSeconds(ShortestTime(request, table.times(), pace_));
  const FleetLine line = fleet_.Line({});
  view.prefill_workers =
      std::count_if(line.workers.begin(), line.workers.end(), [](const auto& worker) { return worker.ready; });
  const double expected_s = SecondsOr(TimeOnOne(request, table.times(), pace_), request.rest());
  const bool may_overtake = MayOvertake(request);
  const bool fits = may_overtake && Allowance::Left(fleet_.OvertakingRoomS()).Fits(expected_s);
  if (!fits || !AllBear(ticket, expected_s)) {
    view.backlog_s = LeastBacklogS(line, may_overtake);
    // Each that bears it may be overtaken, also where another does not.
    for (auto older = waiting_.begin(); older != waiting_.lower_bound(ticket.turn_); ++older) {
      const bool overtaken = may_overtake && Bears(older->second, expected_s);
      view.ahead_s += overtaken ? 0 : older->second.prefill_s;
    }
  }
  if (decodes) {
    CountSlots(view);
    for (const auto& [turn, waiter] : for_decode_) view.slots_ahead += turn < ticket.turn_;
  }
  return absl::Seconds(runahead::ExpectFirstToken(view));
}

ContinuationOffer FleetQueue::OfferOf(const LiveWorker& worker, int64_t known, int64_t rests, const Ticket& ticket,
                                      const ChainRequest& request, const PartitionTable& table, bool decodes) const {
  ContinuationView view;
  view.prompt_tokens = request.tokens;
  view.known_tokens = known;
  view.chain_s = absl::ToDoubleSeconds(ExpectByChain(ticket, request, table, decodes));
  MutexLock lock(mu_);
  const int leases = fleet_.DecodeViews()[worker.index].leases;
  view.busy = leases > 0;
  view.pace = rows_.Ratio(leases, clock_.Now()) * chains_.Ratio(Decoding(), clock_.Now());
  view.rests = rests;
  const auto on_one_s = [&](int64_t tokens) RUNAHEAD_REQUIRES(mu_) {
    return absl::ToDoubleSeconds(TimeOnOne(Whole(tokens), table.times(), pace_));
  };
  return OfferToContinue(view, on_one_s);
}

absl::Duration FleetQueue::ExpectByChain(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table,
                                         bool decodes) const {
  const absl::Duration waited = ExpectFirstToken(ticket, request, table, decodes);
  MutexLock lock(mu_);
  return ByPace(waited, request, table);
}

absl::Duration FleetQueue::ExpectPlaced(const Placement& placement, const ChainRequest& request,
                                        const PartitionTable& table) const {
  MutexLock lock(mu_);
  const absl::Duration expected = ByPace(placement.first_token_in, request, table);
  if (expected <= absl::ZeroDuration() || request.known_tokens == 0) return expected;
  return expected + bring_.Expect(request.known_tokens, clock_.Now());
}

absl::Duration FleetQueue::ByPace(absl::Duration waited, const ChainRequest& request,
                                  const PartitionTable& table) const {
  const absl::Duration likely = LikelyTime(request, table.times(), pace_);
  if (likely <= absl::ZeroDuration()) return likely;  // what waits before it says nothing of the prompt itself
  return std::max(waited, likely) + likely * (chains_.Ratio(Decoding(), clock_.Now()) - 1);
}

int64_t FleetQueue::Decoding() const {
  int64_t leases = 0;
  for (const DecodeView& worker : fleet_.DecodeViews()) leases += worker.leases;
  return leases;
}

BehindOffer FleetQueue::OfferBehindKnown(int64_t known, const Ticket& ticket, const ChainRequest& request,
                                         const PartitionTable& table, bool decodes) const {
  return OfferBehind(known, request,
                     [&](const ChainRequest& chain) { return ExpectByChain(ticket, chain, table, decodes); });
}

BehindOffer FleetQueue::OfferSiblingBehind(int64_t known, const ChainRequest& request,
                                           const PartitionTable& table) const {
  return OfferBehind(known, request, [&](const ChainRequest& chain) {
    MutexLock lock(mu_);
    return LikelyTime(chain, table.times(), pace_) * chains_.Ratio(Decoding(), clock_.Now());
  });
}

BehindOffer FleetQueue::OfferBehind(int64_t known, const ChainRequest& request,
                                    absl::FunctionRef<absl::Duration(const ChainRequest& chain)> expect) const {
  ChainRequest behind = request;
  behind.known_tokens = TokensToBring(request.tokens, known);
  if (behind.known_tokens < kLeastKnownTokens) return {};
  const absl::Duration whole = expect(request);
  absl::Duration rest = expect(behind);
  MutexLock lock(mu_);
  if (rest > absl::ZeroDuration()) rest += bring_.Expect(behind.known_tokens, clock_.Now());
  return runahead::OfferBehind(request.tokens, behind.known_tokens, absl::ToDoubleSeconds(whole),
                               absl::ToDoubleSeconds(rest));
}

bool FleetQueue::PaysToWait(const ChainRequest& request, const Coming& coming, absl::Duration alone,
                            const PartitionTable& table) const {
  const int64_t saved = coming.known - coming.begun;
  if (saved < kLeastKnownTokens) return false;
  if (alone <= absl::ZeroDuration() && 2 * saved < request.tokens - coming.begun) return false;
  MutexLock lock(mu_);
  if (coming.ways.rows && PaysToWaitForRows(request, coming, alone, table)) return true;
  return coming.ways.chain &&
         PaysToWaitForChain(ViewBehind(request, coming, alone, table), absl::ToDoubleSeconds(coming.wait));
}

bool FleetQueue::PaysToWaitForRows(const ChainRequest& request, const Coming& coming, absl::Duration alone,
                                   const PartitionTable& table) const {
  const absl::Time now = clock_.Now();
  // The sequence that it waits for runs there by then.
  const ContinuationView view{.prompt_tokens = request.tokens,
                              .known_tokens = coming.known,
                              .chain_s = absl::ToDoubleSeconds(alone),
                              .busy = true,
                              .rests = coming.waiting,
                              .pace = rows_.Ratio(1, now) * chains_.Ratio(Decoding(), now)};
  return runahead::PaysToWait(view, absl::ToDoubleSeconds(coming.wait), [&](int64_t of) RUNAHEAD_REQUIRES(mu_) {
    return absl::ToDoubleSeconds(TimeOnOne(Whole(of), table.times(), pace_));
  });
}

// The chains of those that wait already are spread over the workers.
ComingBehindView FleetQueue::ViewBehind(const ChainRequest& request, const Coming& coming, absl::Duration alone,
                                        const PartitionTable& table) const {
  ChainRequest behind = request;
  behind.known_tokens = TokensToBring(request.tokens, coming.known);
  const absl::Time now = clock_.Now();
  const double ratio = chains_.Ratio(Decoding(), now);
  const absl::Duration bring = bring_.Expect(behind.known_tokens, now);
  const absl::Duration rest = LikelyTime(behind, table.times(), pace_) * ratio;
  const absl::Duration each = TimeOnOne(behind, table.times(), pace_) * ratio + bring;
  ComingBehindView view{.prompt_tokens = request.tokens, .known_tokens = coming.known, .waiting = coming.waiting};
  view.whole_s = absl::ToDoubleSeconds(alone);
  absl::Duration own = LikelyTime(request, table.times(), pace_) * ratio;
  if (request.known_tokens > 0) own += bring_.Expect(request.known_tokens, now);
  view.before_s = absl::ToDoubleSeconds(alone - own);
  view.rest_s = rest > absl::ZeroDuration() ? absl::ToDoubleSeconds(rest + bring) : 0;
  view.each_s = absl::ToDoubleSeconds(each) / std::max(1, fleet_.ready_prefill());
  return view;
}

void FleetQueue::PrefillTook(int64_t tokens, int64_t width, absl::Duration took) {
  MutexLock lock(mu_);
  pace_.Took(tokens, width, took);
  const bool waiting = TimeAnew(waiting_), away = TimeAnew(for_return_);
  AllowAnew();
  if (waiting || away) WakeNext();
}

void FleetQueue::ChainTook(const ChainRequest& request, int64_t width, int own_leases, absl::Duration took,
                           const PartitionTable& table) {
  {
    MutexLock lock(mu_);
    const auto expect = [&](const ChainRequest& chain) RUNAHEAD_REQUIRES(mu_) {
      const absl::Duration predicted = PredictedTime(chain, static_cast<int>(width), table.times());
      return predicted > absl::ZeroDuration() ? predicted : LikelyTime(chain, table.times(), pace_);
    };
    const int64_t beside = Decoding() - own_leases;
    const absl::Time now = clock_.Now();
    if (request.known_tokens > 0) {
      const double ratio = chains_.Ratio(beside, now);
      bring_.Took(request.known_tokens, request.tokens, expect(Whole(request.tokens)) * ratio, expect(request) * ratio,
                  took, now);
      return;
    }
    chains_.Took(beside, expect(request), took, now);
  }
  PrefillTook(request.tokens, width, took);
}

void FleetQueue::RowsTook(const LiveWorker& worker, int64_t prompt_tokens, int64_t known, absl::Duration took,
                          const PartitionTable& table) {
  const int beside = fleet_.DecodeViews()[worker.index].leases - 1;  // one is its own
  MutexLock lock(mu_);
  const double alone_s = SecondsOfRest(prompt_tokens, known, [&](int64_t tokens) RUNAHEAD_REQUIRES(mu_) {
    return absl::ToDoubleSeconds(TimeOnOne(Whole(tokens), table.times(), pace_));
  });
  const absl::Time now = clock_.Now();
  const double expected_s = alone_s * FactorBeside({.busy = beside > 0}) * chains_.Ratio(Decoding() - 1, now);
  rows_.Took(beside, absl::Seconds(expected_s), took, now);
}

// Others place nothing meanwhile, for they would plan.
std::optional<Placement> FleetQueue::Take(const Ticket& ticket, const ChainPlan& plan, const ChainRequest& request,
                                          const PartitionTable& table, const Picture& picture,
                                          absl::Span<const WorkerView> line) {
  PlacedJob job;
  job.tokens = request.tokens;
  job.computing = PredictedTime(request, static_cast<int>(plan.parts.size()), table.times());
  job.expected_s = job.computing > absl::ZeroDuration() ? absl::ToDoubleSeconds(job.computing) : request.expected_s;
  if (job.computing == absl::ZeroDuration()) {
    MutexLock lock(mu_);
    job.computing = OfRest(request, [this](int64_t tokens) RUNAHEAD_REQUIRES(mu_) { return pace_.Expect(tokens); });
  }
  const absl::Duration front = plan.overtakes ? UntilItOvertakes(request, line[plan.first])
                                              : Backlog(line.subspan(plan.first, plan.parts.size()));
  // Who goes with others is computed while they are.
  const bool together =
      !plan.overtakes && plan.parts.size() == 1 && request.known_tokens == 0 && request.tokens <= line[plan.first].room;
  job.end = picture.now + front + (together ? absl::ZeroDuration() : job.computing);
  {
    MutexLock lock(mu_);
    AllowOthers(ticket, absl::ToDoubleSeconds(front));
    // All of a chain take the time of others, one after the other.
    job.allowance = Allowance::Left(ticket.allowance_->left_s() / static_cast<double>(plan.parts.size()));
  }
  std::optional<Placement> placement = fleet_.Place(plan, job, picture.line);
  if (!placement.has_value()) return placement;
  placement->first_token_in = job.end - picture.now;
  MutexLock lock(mu_);
  CountOvertaken(ticket, request.expected_s, placement->overtaken);
  return placement;
}

}  // namespace runahead
