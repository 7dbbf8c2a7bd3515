// A session whose decode worker drains: its sequence moves to another one while it is decoded. What fails on the way
// leaves it where it is; what its worker does not live to send is rebuilt, as any loss.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/base/logging.h"
#include "server/base/printable.h"
#include "server/router/session.h"

namespace runahead {
namespace {

// The same as RouterParts::move_again where nobody is left but who did not answer in time.
constexpr absl::Duration kMoveAgainAfterSilence = absl::Seconds(10);

// Tokens that the sequence may get while its KV is on the way: those behind are computed by the worker that takes it.
constexpr int32_t kMoveMargin = 256;

std::string Rate(const v1::MoveEnd& end) {
  const double seconds = std::max(end.took_s(), 1e-6);
  return absl::StrFormat("%d bytes in %.3f s, %.1f MB/s, stood still for %.3f s", end.bytes(), end.took_s(),
                         static_cast<double>(end.bytes()) / seconds / 1e6, end.stopped_s());
}

}  // namespace

DecodeLease::Need Session::NeedOfMove() const {
  const auto prompt = static_cast<int32_t>(prompt_.size());
  DecodeLease::Need need = NeedOfAnswer();
  need.arriving_tokens = prompt + std::min(max_tokens_ - 1, answer_->tokens() + kMoveMargin);
  need.patience = router_.move_patience;
  need.avoid_silent = true;
  if (need.expected_tokens) need.expected_tokens = std::max(*need.expected_tokens, *need.arriving_tokens);
  return need;
}

void Session::TellStays(absl::string_view why) {
  if (std::exchange(told_stays_, true)) return;
  LogInfo("session", "request ", Printable(request_.request_id()), ": stays on decode worker ",
          lease_->worker().capabilities.name(), ", which drains: ", why);
}

Task<> Session::ConsiderMove() {
  const LiveWorker& from = lease_->worker();
  const absl::Time began = router_.clock.Now();
  if (!*from.drains || move_.to != nullptr || began < move_again_) co_return;
  if (!from.capabilities.moves()) {
    TellStays("its sequences do not move");
    co_return;
  }
  auto place = router_.move_places->Take();
  if (place == nullptr) co_return;
  const DecodeLease::Need need = NeedOfMove();
  absl::StatusOr<std::unique_ptr<DecodeLease>> lease = co_await DecodeLease::Reserve(
      need, *ticket_, {}, router_.queue, router_.fleet, router_.sequencer, router_.clock, cancel_);
  if (cancel_.cancelled()) co_return;
  if (!lease.ok()) {
    const absl::Time now = router_.clock.Now();
    const bool silent = absl::IsUnavailable(lease.status()) && now - began >= router_.move_patience;
    move_again_ = now + (silent ? kMoveAgainAfterSilence : router_.move_again);
    router_.metrics.CountMove(MoveResult::kNoRoom, 0);
    TellStays(absl::StrCat("until another one has room: ", lease.status().message()));
    co_return;
  }
  move_ = {*std::move(lease), std::move(place), began};
  const v1::Capabilities& to = move_.to->worker().capabilities;
  v1::ControlCommand command;
  v1::MoveSequence& move = *command.mutable_move();
  *move.mutable_lease() = lease_->id();
  *move.mutable_target_lease() = move_.to->id();
  move.mutable_target()->set_name(to.name());
  move.mutable_target()->set_link_address(to.link_address());
  move.mutable_target()->set_incarnation(to.incarnation());
  move.mutable_target()->set_epoch(to.epoch());
  move.set_most_tokens(*need.arriving_tokens);
  router_.sequencer.Send({{from.index, std::move(command)}});
}

void Session::TakeMoveEnd(const v1::MoveEnd& end) {
  if (move_.to == nullptr) return;  // none that was asked for
  const std::string way = absl::StrCat("from decode worker ", lease_->worker().capabilities.name(), " to ",
                                       move_.to->worker().capabilities.name(), ": ", Rate(end));
  if (end.has_moved_tokens()) {
    move_.tokens = end.moved_tokens();
    router_.metrics.CountMove(MoveResult::kMoved, end.bytes());
    report_.Moved(move_.began, end.moved_tokens());
    LogInfo("session", "request ", Printable(request_.request_id()), ": moved behind ", answer_->tokens(), " tokens ",
            way);
    return;
  }
  router_.metrics.CountMove(MoveResult::kFailed, end.bytes());
  LogInfo("session", "request ", Printable(request_.request_id()), ": did not move ", way, "; ", end.why_not());
  router_.queue.Avoid(*ticket_, move_.to->worker().index);
  move_ = {};
  move_again_ = router_.clock.Now() + router_.move_again;
}

MoveResult Session::ResultOfNoMove() const {
  if (answer_->reason() || cancel_.cancelled() || !InTime("while the sequence moved").ok()) return MoveResult::kEnded;
  const bool lost = DecodeFailure(*decode_end_, lease_->live()).fault == JobFault::kLost;
  return lost ? MoveResult::kLost : MoveResult::kFailed;
}

bool Session::GoOnWhereMoved() {
  Move move = std::exchange(move_, {});
  if (move.to == nullptr) return false;
  if (!move.tokens) {
    router_.metrics.CountMove(ResultOfNoMove(), 0);
    return false;
  }
  if (answer_->reason() || cancel_.cancelled()) return false;
  move.to->GoesOnFor(*lease_);
  lease_ = std::move(move.to);
  told_stays_ = false;
  moved_tokens_ = move.tokens;
  plan_.set_decode_worker(lease_->worker().capabilities.name());
  return true;
}

}  // namespace runahead
