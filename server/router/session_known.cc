// A session whose decode worker may have KV of its prompt's beginning. Either that worker computes the rest itself and
// draws the first token and all others: no chain, no Start, no hand-off. Or a chain begins behind what is known: its
// head gets the KV from the worker, and only the rest is handed off there. What the router believes may be stale; the
// worker's reply to Reserve is the truth. Looked for when the request comes, and once more when its turn has come;
// where it does not come to that, or fails, the request goes the ordinary way.
#include <algorithm>
#include <set>
#include <utility>

#include "scheduler/placement/known_beginnings.h"
#include "server/router/session.h"
#include "server/task/co_status.h"

namespace runahead {
namespace {

constexpr char kContinuation[] = "continuation";

// So many workers are asked for a beginning: each ask in vain takes a round trip.
constexpr size_t kMostAsked = 2;

// One that begins alike may be late by half of what was expected: as much as prompts differ beside what else runs. For
// one that takes next to no time, a step of others that comes first is long.
constexpr int kLateBy = 2;
constexpr absl::Duration kLeastLate = absl::Milliseconds(250);
// Where no times are known, nobody knows what is late either. A worker that hangs is given up sooner.
constexpr absl::Duration kAwaitedUntimed = absl::Seconds(10);

absl::Duration MayBeLate(absl::Duration expected) {
  return std::max(expected / kLateBy, kLeastLate);
}

}  // namespace

Task<std::optional<Session::Continuation>> Session::ChooseContinuation(const std::set<int>& in_vain) const {
  std::optional<Continuation> best;
  if (!MayContinue()) co_return best;
  const auto workers = router_.queue.RankDecode(*ticket_, NeedOfAnswer().of_worker());
  if (!workers.ok()) co_return best;  // whatever is the matter, it is so by the ordinary way, too
  const std::shared_ptr<const PartitionTable> table = router_.table.Get();
  for (const KnownIndex::Found& found : router_.known->Find(*workers, salt_, prompt_)) {
    if (in_vain.contains(found.worker->index)) continue;
    if (router_.only_way) {
      if (!best) best = ByOnly(*router_.only_way, found);
      continue;
    }
    const ContinuationOffer offer = role_.later() ? OfferToSibling(found.tokens)
                                                  : router_.queue.OfferOf(*found.worker, found.tokens, found.rests,
                                                                          *ticket_, chain_, *table, max_tokens_ > 1);
    // One token in rows of a step takes next to nothing, and no chain: a later answer compares that with no seconds.
    const auto better = [&](int64_t tokens, double rest_s, bool by_chain) {
      if (tokens == 0 || !best) return tokens > 0;
      if (role_.later() && best->by_chain != by_chain) return best->by_chain;
      return rest_s < best->rest_s;
    };
    const v1::Capabilities& able = found.worker->capabilities;
    if (able.keeps_beginnings() && better(offer.least_known_tokens, offer.rest_s, false)) {
      best = {found.worker, offer.least_known_tokens, offer.rest_s, offer.whole_s, offer.rest_s, found.rests, false,
              found.tokens};
    }
    if (!able.lends_beginnings() || !MayBeginBehind()) continue;
    const BehindOffer behind =
        role_.later() ? router_.queue.OfferSiblingBehind(found.tokens, chain_, *table)
                      : router_.queue.OfferBehindKnown(found.tokens, *ticket_, chain_, *table, max_tokens_ > 1);
    const double counted_s = behind.rest_s * kChainBehindCosts;
    if (better(behind.known_tokens, counted_s, true)) {
      best = {found.worker, behind.known_tokens, counted_s, behind.whole_s, behind.rest_s, found.rests, true};
    }
  }
  co_return best;
}

std::optional<Session::Continuation> Session::ByOnly(KnownWay way, const KnownIndex::Found& found) const {
  const v1::Capabilities& able = found.worker->capabilities;
  const bool may = way == KnownWay::kRows    ? able.keeps_beginnings()
                   : way == KnownWay::kChain ? able.lends_beginnings() && MayBeginBehind()
                                             : false;
  const int64_t tokens = TokensToBring(static_cast<int64_t>(prompt_.size()), found.tokens);
  if (!may || tokens < kLeastKnownTokens) return std::nullopt;
  return Continuation{.worker = found.worker,
                      .least_tokens = tokens,
                      .rests = found.rests,
                      .by_chain = way == KnownWay::kChain,
                      .known_tokens = found.tokens};
}

bool Session::MayBeginBehind() const {
  return !IsTsp(chain_.schedule);
}

// All but the prompt's last token is there, unless it had to go; rests of one token are computed together, so how many
// there are does not matter. Half of the prompt is worth it, as where no times are known.
ContinuationOffer Session::OfferToSibling(int64_t known) const {
  const ContinuationView view{.prompt_tokens = static_cast<int64_t>(prompt_.size()), .known_tokens = known};
  return OfferToContinue(view, [](int64_t) { return 0.0; });
}

Task<absl::StatusOr<bool>> Session::Continue(const std::function<void()>& settled) {
  ExpectOutput();
  std::set<int> in_vain;
  while (in_vain.size() < kMostAsked) {
    BeginFromFirst();
    lessons_ = router_.known->lessons();
    const std::optional<Continuation> chosen = co_await On(*router_.work, ChooseContinuation(in_vain));
    report_.Lap(TtftStage::kQueue);
    if (!chosen) co_return false;
    BeginSaving(*chosen);
    if (chosen->by_chain) {
      behind_ = chosen;
      chain_.known_tokens = chosen->least_tokens;
      co_return false;
    }
    if (!role_.later()) {
      RUNAHEAD_CO_ASSIGN_OR_RETURN(const bool waited, co_await AwaitAlike(ByRows(*chosen), settled));
      if (waited) {
        in_vain.clear();  // who lacked it may have it now
        continue;
      }
    }
    const absl::Status asked = co_await AskToContinue(*chosen);
    RUNAHEAD_CO_RETURN_IF_ERROR(cancel_.status());
    if (asked.ok()) {
      router_.queue.Settled(*ticket_);
      settled();
      co_return true;
    }
    if (!absl::IsNotFound(asked)) co_return false;
    in_vain.insert(chosen->worker->index);
  }
  co_return false;
}

Task<absl::Status> Session::AskToContinue(const Continuation& chosen) {
  rest_ = std::make_unique<KnownIndex::Rest>(*router_.known, *chosen.worker);
  rest_since_ = chosen.rests == 0 ? std::optional(router_.clock.Now()) : std::nullopt;
  DecodeLease::Need need = NeedOfAnswer();
  need.known = {chosen.worker, static_cast<int32_t>(chosen.least_tokens), prompt_};
  need.avoid_silent = true;
  absl::StatusOr<std::unique_ptr<DecodeLease>> lease = co_await DecodeLease::Reserve(
      need, *ticket_, {}, router_.queue, router_.fleet, router_.sequencer, router_.clock, cancel_);
  report_.Lap(TtftStage::kReserve);
  RUNAHEAD_CO_RETURN_IF_ERROR(cancel_.status());
  CountContinuation(lease.status(), chosen);
  if (lease.ok()) {
    lease_ = *std::move(lease);
    PromptGoesToLease();
    co_return absl::OkStatus();
  }
  coming_.reset();
  rest_.reset();
  saving_.reset();
  co_return lease.status();
}

Task<absl::StatusOr<std::optional<bool>>> Session::LookAgain(bool after_full, const std::function<void()>& settled) {
  if (failed_before_ || !MayContinue()) co_return false;
  if (!behind_ && (after_full || (router_.known->lessons() != lessons_ && !behind_refused_))) {
    RUNAHEAD_CO_ASSIGN_OR_RETURN(const bool continued, co_await Continue(settled));
    if (continued || behind_) run_.reset();  // it was placed for the whole prompt
    if (continued) co_return true;
    if (run_ == nullptr) co_return std::nullopt;  // or was given back for a wait
  }
  if (role_.later()) co_return false;  // it has waited for its siblings
  Alone alone{router_.queue.ExpectPlaced(run_->placement(), chain_, *router_.table.Get()), chain_.known_tokens};
  alone.to = WhereItGoes();
  RUNAHEAD_CO_ASSIGN_OR_RETURN(const bool waited, co_await AwaitAlike(alone, settled));
  if (!waited) co_return false;
  RUNAHEAD_CO_ASSIGN_OR_RETURN(const bool continued, co_await Continue(settled));
  co_return continued ? std::optional<bool>(true) : std::nullopt;
}

ComingBeginnings::Destination Session::WhereItGoes() const {
  const bool one = max_tokens_ == 1;
  const DecodeLease::Need need = one ? NeedOfOneToken() : NeedOfDecode();
  if (behind_) return {behind_->worker, WaysOfPrompt(*behind_->worker), need.of_worker(), false, one};
  const auto workers = router_.queue.RankDecode(*ticket_, need.of_worker(), run_->placement().chain);
  if (!workers.ok()) return {};
  for (const std::shared_ptr<const LiveWorker>& worker : *workers) {
    if (!need.keeps || KeepsPrompts(*worker)) {
      return {.worker = worker, .ways = WaysOfPrompt(*worker), .need = need.of_worker(), .returned = one};
    }
  }
  return {};
}

Session::Alone Session::ByRows(const Continuation& chosen) const {
  Alone alone{chosen.whole_s > 0 ? absl::Seconds(chosen.expected_s) : absl::ZeroDuration(), chosen.known_tokens, true};
  alone.to = {chosen.worker, WaysOfPrompt(*chosen.worker), NeedOfAnswer().of_worker()};
  return alone;
}

// A chain behind a beginning does not overtake, as it may with a place at which it computes all.
KnownWays Session::OwnWays(KnownWays ways) const {
  const auto may = [&](KnownWay way) { return !router_.only_way || *router_.only_way == way; };
  ways.rows = ways.rows && may(KnownWay::kRows);
  ways.chain =
      ways.chain && may(KnownWay::kChain) && MayBeginBehind() && (run_ == nullptr || !run_->placement().plan.overtakes);
  return ways;
}

void Session::PromptGoesToLease() {
  if (!LeavesPrompt()) {
    coming_.reset();
  } else if (coming_ != nullptr) {
    coming_->GoesTo(lease_->live(), WaysOfPrompt(lease_->worker()));
  }
}

// The worker that computes its rest computes the next one, too.
bool Session::PaysToWait(const ComingBeginnings::Alike& alike, const Alone& alone) const {
  KnownWays ways = OwnWays(alike.to.ways);
  if (alone.by_rows) ways.chain = false;
  if (alike.to.worker == nullptr || (!ways.rows && !ways.chain)) return false;
  const absl::Time now = router_.clock.Now();
  if (std::max(now, alike.ready) >= WaitsUntil(alike, alone.takes)) return false;
  const absl::Duration wait = alike.ready - now;
  const int64_t block = std::max<int64_t>(1, alike.to.worker->capabilities.kv_block_tokens());
  const ComingLease lease{.need = alike.to.need,
                          .reserved = alike.to.reserved,
                          .returned = alike.to.returned,
                          .shared_tokens = alike.tokens / block * block,
                          .waiting = alike.waiting,
                          .in_s = absl::ToDoubleSeconds(wait)};
  return router_.queue.HasRoomBehind(*ticket_, *alike.to.worker, NeedOfAnswer().of_worker(), lease) &&
         router_.queue.PaysToWait(chain_, {alike.tokens, wait, alike.waiting, ways, alone.known_tokens}, alone.takes,
                                  *router_.table.Get());
}

// It is worth a wait that is shorter than what it takes by itself, and no more than half as long again. One that is
// later than that may never come.
absl::Time Session::WaitsUntil(const ComingBeginnings::Alike& alike, absl::Duration alone) const {
  const absl::Time now = router_.clock.Now();
  if (alone <= absl::ZeroDuration()) return std::min(waits_until_, now + kAwaitedUntimed);
  const bool expected = alike.takes > absl::ZeroDuration();
  const absl::Duration late = MayBeLate(expected ? std::min(alike.takes, alone) : alone);
  return std::min(waits_until_, (expected ? alike.ready : now) + late);
}

// It counts in the queue while it waits. Where that is full, it goes the ordinary way: where it has to wait there, too,
// it is refused.
Task<absl::StatusOr<bool>> Session::AwaitAlike(const Alone& alone, const std::function<void()>& settled) {
  coming_.reset();
  // A shorter rest would save nobody else anything.
  if (static_cast<int64_t>(prompt_.size()) - alone.known_tokens < kLeastKnownTokens) co_return false;
  absl::Time until;
  const absl::Time now = router_.clock.Now();
  ComingBeginnings::Entered entered =
      router_.coming->Enter(salt_, prompt_, now, alone.takes, alone.to, [&](const ComingBeginnings::Alike& alike) {
        until = std::min(WaitsUntil(alike, alone.takes), deadline_);
        return PaysToWait(alike, alone) && router_.queue.EnterForBeginning(*ticket_).ok();
      });
  coming_ = std::move(entered.computed);
  if (coming_ != nullptr) co_return false;
  run_.reset();  // others may use the chain
  settled();
  const bool timed = alone.takes > absl::ZeroDuration();
  waits_until_ = std::min(waits_until_, now + (timed ? alone.takes + MayBeLate(alone.takes) : kAwaitedUntimed));
  router_.metrics.CountBeginningAwaited();
  CancelToken& over = entered.awaited->over();
  Wake wake;
  const auto notify = [&wake] { wake.Notify(); };
  const CancelToken::Subscription on_over = over.OnCancel(notify), on_cancel = cancel_.OnCancel(notify);
  while (!over.cancelled() && !cancel_.cancelled() && router_.clock.Now() < until) {
    co_await wake.Until(router_.clock, until);
  }
  router_.queue.LeaveForBeginning(*ticket_);
  report_.Lap(TtftStage::kQueue);
  if (!over.cancelled()) waits_until_ = absl::InfinitePast();
  RUNAHEAD_CO_RETURN_IF_ERROR(cancel_.status());
  RUNAHEAD_CO_RETURN_IF_ERROR(InTime("while a prompt that begins alike was computed"));
  co_return true;
}

// Where no times are known, nobody knows what the beginning saves. The tail draws one token, steps the others.
absl::Status Session::CheckStepsBehind(const DecodeLease& lease) const {
  if (!behind_ || !saving_) return absl::OkStatus();
  const int64_t steps = int64_t{expected_output_} - answer_->tokens() - 1;
  if (!StepsCostMore(saving_->whole_s - saving_->rest_s, lease.lost_recompute_s(), steps)) return absl::OkStatus();
  return absl::AbortedError("steps behind a beginning without X would take longer than computing it");
}

void Session::CountContinuation(const absl::Status& reserved, const Continuation& chosen) const {
  if (reserved.ok()) return router_.metrics.CountContinuation(ContinuationResult::kTaken);
  if (absl::IsAborted(reserved)) return router_.metrics.CountContinuation(ContinuationResult::kSlower);
  if (!absl::IsNotFound(reserved)) return router_.metrics.CountContinuation(ContinuationResult::kRefused);
  router_.metrics.CountContinuation(ContinuationResult::kGone);
  // lessons_ is of before it was chosen, and so of before it was asked.
  router_.known->Gone(*chosen.worker, salt_, prompt_, chosen.least_tokens, lessons_);
}

bool Session::BeginFromFirst(const absl::Status& refused) {
  if (!behind_) return false;
  CountContinuation(refused, *behind_);
  BeginFromFirst();
  behind_refused_ = true;
  return true;
}

void Session::BeginFromFirst() {
  behind_.reset();
  behind_refused_ = false;
  saving_.reset();
  chain_.known_tokens = 0;
}

void Session::BeginContinuation() {
  router_.metrics.ChainPlanned(static_cast<int64_t>(prompt_.size()), width());
  if (!role_.later()) router_.metrics.CountKnownPromptTokens(RestBy::kDecode, lease_->known_tokens());
  v1::Plan plan;
  plan.set_schedule(kContinuation);
  plan.set_decode_worker(lease_->worker().capabilities.name());
  plan.set_known_tokens(lease_->known_tokens());
  plan.set_known_output_tokens(lease_->known_output_tokens());
  Began(std::move(plan));
}

void Session::EndRest() {
  if (rest_ == nullptr) return;
  report_.Lap(TtftStage::kPrefill);
  rest_.reset();
  if (!rest_since_ || role_.later()) return;
  router_.queue.RowsTook(lease_->worker(), static_cast<int64_t>(prompt_.size()), lease_->known_tokens(),
                         router_.clock.Now() - *rest_since_, *router_.table.Get());
}

void Session::BeginSaving(const Continuation& chosen) {
  if (chosen.whole_s > 0 && !role_.later()) saving_ = {router_.clock.Now(), chosen.whole_s, chosen.expected_s};
}

void Session::CountSaving() {
  if (!saving_) return;
  const absl::Duration whole = absl::Seconds(saving_->whole_s), took = router_.clock.Now() - saving_->since;
  router_.metrics.CountSavedByKnown(whole - absl::Seconds(saving_->rest_s), whole - took);
  saving_.reset();
}

bool Session::MayLeavePrompt() const {
  return router_.known->on() && !request_.no_cache() && !request_.has_experiment() &&
         static_cast<int64_t>(prompt_.size()) > kLeastKnownTokens;
}

// The worker keeps the prompt from the first token on that it draws, before it sends that.
void Session::LeavePrompt() {
  if (std::exchange(left_prompt_, true)) return;
  if (LeavesPrompt() && !moved_tokens_) router_.known->Learn(lease_->worker(), salt_, prompt_);
  coming_.reset();  // those that wait for it find it known
  if (role_.siblings != nullptr) role_.siblings->MayBegin();
}

// Of its last token no KV was computed. Where it was ended in the middle, the worker may have less than that, or more.
// It keeps nothing of a sequence that moved to it, or that failed.
void Session::LearnBeginning() const {
  if (request_.no_cache() || lease_ == nullptr || prefill_needed_ || report_.tokens() == 0) return;
  if (moved_tokens_ || (decode_end_ && !absl::IsCancelled(*decode_end_))) return;
  if (!router_.known->on() || !HasBeginnings(lease_->worker().capabilities)) return;
  std::vector<int32_t> ids = prompt_;
  ids.insert(ids.end(), answer_->ids().begin(), answer_->ids().end() - 1);
  router_.known->Learn(lease_->worker(), salt_, ids);
}

}  // namespace runahead
