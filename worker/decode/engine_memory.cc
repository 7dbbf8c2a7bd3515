// The memory of a DecodeEngine's sequences, where their leases grow: who is parked where it gets short, and who comes
// back.
//
// Somebody always gets on. Of the sequences whose leases grow and that have memory, one has the first turn
// (MemoryTurn), and it is never parked. Any other that lacks memory is parked at the latest itself, for it is longer
// than was guaranteed to it; so it is only the first one that may have to wait with memory of its own. It waits for
// those that are not to be parked: leases that do not grow, and sequences that came back and have their tokens
// guaranteed. These have all the memory that they need to the end, or to where they can be parked, and they step: who
// comes back has a place in the step at once, and where the first one has the only place it makes room (NobodySteps).
// Besides it waits for leases whose KV still arrives, or that hold what they are to copy (Sequence::Copies), and for
// work on those that are dead: each ends by itself, and rings (KvStore::OnFreed). What is kept of sequences that ended
// is free memory. Where nobody has memory the whole store is free in the end, and it holds any lease.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "server/base/logging.h"
#include "worker/decode/engine.h"
#include "worker/decode/engine_active.h"

namespace runahead {

MemoryTurn DecodeEngine::TurnOf(SequenceNumber number) const {
  const std::optional<KvStore::Sequence>& kv = sequences_.at(number)->kv;
  return {.parked_first = kv.has_value() && kv->parked_first(), .number = number};
}

void DecodeEngine::ReportParking(bool one_more) {
  parked_now_ = static_cast<int64_t>(parked_.size());
  if (options_.on_parking) options_.on_parking({parked_now_, one_more});
}

// In the order of their turns: the first one for which there is too little memory keeps the others back, or small ones
// would pass it for ever. Only into a place of the step that is free, so that what is guaranteed to them is used at
// once. A block stays free for each that has memory: else it would be parked for who came back, whose turn may be later
// than its own and who is not to be parked now.
void DecodeEngine::ComeBack() {
  int64_t back = 0;
  while (!parked_.empty() && static_cast<int64_t>(running_.size()) + back < options_.max_batch) {
    const SequenceNumber number = parked_.begin()->number;
    Active& active = *sequences_.at(number);
    const int64_t tokens = active.ComesBackWith();
    if (!active.kv->Grow(tokens, static_cast<int64_t>(MemoryHolders().size())).ok()) break;
    active.guaranteed = tokens;
    active.Waited("parked", clock_.Now());
    parked_.erase(parked_.begin());
    active.sink->OnParked(false);
    waiting_.insert(waiting_.begin() + back, number);
    ++back;
    ReportParking(/*one_more=*/false);
  }
}

// Memory for the rows that a step takes and for one token more, so that a step seldom waits; none for the last token of
// all, which no row is computed of. By turn, of those that run, for how many tokens the ones that lack some want it.
std::map<MemoryTurn, int64_t> DecodeEngine::Lacking(const Grants& grants) const {
  std::map<MemoryTurn, int64_t> lacking;
  for (size_t i = 0; i < running_.size(); ++i) {
    const Active& active = *sequences_.at(running_[i]);
    if (grants.granted[i] == 0 || !active.kv->grows()) continue;
    const int64_t tokens = std::min(active.kv->total_tokens() - 1, active.computed + grants.granted[i] + 1);
    const auto has = static_cast<int64_t>(active.kv->blocks().size());
    if (KvBlocksFor(tokens) > has) lacking.emplace(TurnOf(running_[i]), tokens);
  }
  return lacking;
}

std::vector<MemoryHolder> DecodeEngine::MemoryHolders() const {
  std::vector<MemoryHolder> holders;
  for (const auto& [number, active] : sequences_) {
    if (!active->kv.has_value() || !active->kv->grows() || parked_.contains(TurnOf(number))) continue;
    holders.push_back({TurnOf(number), active->length(), active->guaranteed});
  }
  return holders;
}

// In the order of their turns, those that run get memory for their rows. Where there is none somebody is parked, or,
// where nobody may be, who lacks it is left out of this step. Either changes what the others have of the step.
DecodeEngine::Grants DecodeEngine::GrantWithMemory() {
  std::set<SequenceNumber> without;
  for (;;) {
    Grants grants = Grant(without);
    const std::map<MemoryTurn, int64_t> lacking = Lacking(grants);
    const auto fails = std::find_if(lacking.begin(), lacking.end(), [this](const auto& of) {
      return !sequences_.at(of.first.number)->kv->Grow(of.second).ok();
    });
    if (fails == lacking.end()) return grants;
    if (const std::optional<MemoryTurn> last = WhomToPark(MemoryHolders()); last.has_value()) {
      Park(last->number);
    } else {
      without.insert(fails->first.number);
    }
  }
}

void DecodeEngine::Park(SequenceNumber number) {
  Active& active = *sequences_.at(number);
  const auto ran = std::find(running_.begin(), running_.end(), number);
  if (ran == running_.end()) active.Waited("queue", clock_.Now());
  active.since = clock_.Now();
  if (ran != running_.end()) running_.erase(ran);
  if (active.moving != nullptr) StayHere(number, absl::ResourceExhaustedError("it was parked: memory is short"));
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), number), waiting_.end());
  loop_->Leave(*active.kv);
  active.kv->Park(active.ComesBackWith());
  active.row = nullptr;
  active.known = std::max(active.known, std::exchange(active.computed, 0));
  parked_.insert(TurnOf(number));
  active.sink->OnParked(true);
  LogDebug("decode", "parked a sequence of ", active.length(), " tokens: memory is short");
  ReportParking(/*one_more=*/true);
}

// All that run lack memory, or a mask. Others that have memory, and a place only now, go before those that lack it.
void DecodeEngine::NobodySteps() {
  const bool mask_comes = std::any_of(running_.begin(), running_.end(),
                                      [this](SequenceNumber number) { return sequences_.at(number)->AwaitsMask(); });
  if (waiting_.empty() || mask_comes) {
    awaits_memory_ = true;
    return;
  }
  for (const SequenceNumber number : running_) {
    sequences_.at(number)->row = nullptr;
    sequences_.at(number)->since = clock_.Now();
    waiting_.push_back(number);
  }
  running_.clear();
}

}  // namespace runahead
