// Sequences of a DecodeEngine that go to another worker while they are decoded.
//
// Rows that a step has filled do not change, so they go while the sequence gets more. What is made meanwhile goes in
// the next round, which is shorter; when it is short enough, or rounds do not get shorter, the sequence stands still
// for the last one. The order of Park, End and what a carrier answers does not matter: an answer is of one move, and is
// dropped when that is over.
#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/decode/engine.h"
#include "worker/decode/engine_active.h"

namespace runahead {
namespace {

// A round of so few rows takes about as long as an empty one, which is a question and an answer for each layer.
constexpr int64_t kFewRows = 32;
// Each round is of what the one before took to go. Where the fourth is still long they do not get shorter.
constexpr int kMostRounds = 4;

}  // namespace

absl::Status DecodeEngine::CheckMoves() const {
  if (!options_.make_loop) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this worker's sequences do not move: its steps keep KV elsewhere than in its store, or in fewer bits");
}

// The first token behind the prompt's is there, so that the other worker has something to go on from.
absl::Status DecodeEngine::MayMove(const Active& active) const {
  RUNAHEAD_RETURN_IF_ERROR(CheckMoves());
  if (active.moving != nullptr) return absl::FailedPreconditionError("it is being moved already");
  if (!active.kv.has_value()) return absl::FailedPreconditionError("its KV has not come yet");
  if (active.kv->blocks().empty()) return absl::FailedPreconditionError("it is parked");
  if (active.computed < active.prompt()) return absl::FailedPreconditionError("its prompt is being computed here");
  return absl::OkStatus();
}

void DecodeEngine::BeginMove(SequenceNumber number, std::unique_ptr<Moving> moving) {
  const auto it = sequences_.find(number);
  if (it == sequences_.end()) return;
  Active& active = *it->second;
  if (absl::Status may = MayMove(active); !may.ok()) return active.sink->OnMoved({.status = std::move(may)});
  moving->move = next_move_++;
  active.moving = std::move(moving);
  CarryOn(number);
}

void DecodeEngine::CarryOn(SequenceNumber number) {
  Active& active = *sequences_.at(number);
  Moving& moving = *active.moving;
  const int64_t end = std::min(active.computed, moving.most);
  if (end - moving.sent <= kFewRows || ++moving.rounds == kMostRounds) StandStill(number);
  if (end == moving.sent) return MoveAway(number);
  moving.under_way = end;
  moving.carrier->Send(active.kv->Lend(moving.sent, end), TellCarried(number, moving.move));
}

// No step has it any more; its place in the batch is another's.
void DecodeEngine::StandStill(SequenceNumber number) {
  Active& active = *sequences_.at(number);
  active.since = clock_.Now();
  active.moving->stopped = active.since;
  running_.erase(std::remove(running_.begin(), running_.end(), number), running_.end());
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), number), waiting_.end());
  active.row = nullptr;
}

void DecodeEngine::Carried(SequenceNumber number, uint64_t move, const absl::StatusOr<int64_t>& bytes) {
  const auto it = sequences_.find(number);
  if (it == sequences_.end() || it->second->moving == nullptr || it->second->moving->move != move) return;
  Moving& moving = *it->second->moving;
  if (!bytes.ok()) return StayHere(number, bytes.status());
  moving.sent = moving.under_way;
  moving.bytes += *bytes;
  moving.stopped.has_value() ? MoveAway(number) : CarryOn(number);
}

void DecodeEngine::MoveAway(SequenceNumber number) {
  Active& active = *sequences_.at(number);
  const std::unique_ptr<Moving> moving = std::move(active.moving);
  const absl::Time now = clock_.Now();
  active.sink->OnMoved({absl::OkStatus(), moving->sent, moving->bytes, now - moving->since, now - *moving->stopped});
  End(number, absl::OkStatus());
}

// One that stood still goes on before all that wait for a place in the batch.
void DecodeEngine::StayHere(SequenceNumber number, const absl::Status& why) {
  Active& active = *sequences_.at(number);
  const std::unique_ptr<Moving> moving = std::move(active.moving);
  moving->carrier->Cancel();
  const absl::Time now = clock_.Now();
  if (moving->stopped.has_value()) {
    active.since = now;
    waiting_.push_front(number);
  }
  active.sink->OnMoved({.status = why,
                        .bytes = moving->bytes,
                        .took = now - moving->since,
                        .stopped = now - moving->stopped.value_or(now)});
}

absl::Status DecodeEngine::TakeMoved(const DecodeSequence& sequence) {
  if (!sequence.moved_tokens.has_value()) return absl::OkStatus();
  const auto known = static_cast<int64_t>(sequence.prompt_ids.size() + sequence.output_ids.size());
  if (*sequence.moved_tokens >= known) {
    return absl::InvalidArgumentError("moved_tokens: must be fewer than the ids: the last one's KV is computed here");
  }
  return store_.EndArrival(sequence.lease, *sequence.moved_tokens);
}

}  // namespace runahead
