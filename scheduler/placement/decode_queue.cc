#include "scheduler/placement/decode_queue.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

namespace runahead {
namespace {

// The smaller, the sooner the worker will have what the request needs.
auto WaitAt(const DecodeView& worker, const DecodeNeed& need) {
  const bool memory_short = !worker.has_room(need);
  return std::make_tuple(memory_short, memory_short ? 0 : worker.slot_s(), memory_short ? 0 : worker.share(),
                         -worker.room());
}

void KeepAt(DecodeView& worker, const DecodeNeed& need) {
  worker.kept_tokens += need.counted(worker.grows);
  ++worker.kept_slots;
}

int64_t MostRoom(absl::Span<DecodeView* const> workers) {
  int64_t most = 0;
  for (const DecodeView* worker : workers) most = std::max(most, worker->room());
  return most;
}

// Those of `open`, which points into `workers`, that the request takes.
std::vector<DecodeView*> OpenTo(const DecodeNeed& need, const std::set<int>& avoided, std::vector<DecodeView*> open,
                                absl::Span<const DecodeView> workers) {
  if (OthersMayHold(avoided, need, workers)) {
    std::erase_if(open, [&](const DecodeView* view) { return avoided.contains(static_cast<int>(view - &workers[0])); });
  }
  return open;
}

// The one of `open` at which the request fits now; null: none.
DecodeView* FindFit(const DecodeNeed& need, absl::Span<DecodeView* const> open) {
  DecodeView* best = nullptr;
  for (DecodeView* worker : open) {
    if (worker->fits(need) && (best == nullptr || WaitAt(*worker, need) < WaitAt(*best, need))) best = worker;
  }
  return best;
}

}  // namespace

void DecodeQueue::Keep(const Turn& request, const DecodeNeed& need, absl::Span<const DecodeView> workers,
                       const std::set<int>& avoided) {
  std::vector<DecodeView> views(workers.begin(), workers.end());
  AddKept(request, absl::MakeSpan(views));
  LeaveOut(avoided, need, absl::MakeSpan(views));
  Kept& kept = kept_[request];
  kept.need = need;
  kept.avoided = avoided;
  if (kept.worker && !views[*kept.worker].may_hold(need)) kept.worker.reset();
  for (size_t i = 0; i < views.size(); ++i) {
    if (!views[i].may_hold(need)) continue;
    if (!kept.worker || WaitAt(views[i], need) < WaitAt(views[*kept.worker], need)) kept.worker = i;
  }
}

void DecodeQueue::Lost(size_t worker) {
  for (auto& [request, kept] : kept_) {
    if (kept.worker == worker) kept.worker.reset();
  }
}

void DecodeQueue::AddKept(const Turn& request, absl::Span<DecodeView> workers) const {
  for (const auto& [other, kept] : kept_) {
    if (other >= request) break;
    if (kept.worker) KeepAt(workers[*kept.worker], kept.need);
  }
}

bool DecodeQueue::First(const Turn& request) const {
  const auto found = kept_.find(request);
  if (found == kept_.end() || !found->second.worker) return true;
  return std::none_of(kept_.begin(), found,
                      [&](const auto& older) { return older.second.worker == found->second.worker; });
}

std::vector<Turn> DecodeQueue::Firsts() const {
  std::vector<Turn> firsts;
  std::set<size_t> seen;
  for (const auto& [request, kept] : kept_) {
    if (!kept.worker || seen.insert(*kept.worker).second) firsts.push_back(request);
  }
  return firsts;
}

double DecodeQueue::LongestLead() const {
  double longest = 0;
  for (const auto& [request, kept] : kept_) longest = std::max(longest, kept.need.lead_s);
  return longest;
}

// Looks at workers that somebody may have: in a queue that stands few have a slot, or none has the room.
std::vector<Turn> DecodeQueue::WhoFits(absl::Span<const DecodeView> workers) const {
  std::vector<DecodeView> views(workers.begin(), workers.end());
  const double longest_lead = LongestLead();
  const auto closed = [&](const DecodeView* view) {
    return !view->ready || view->room() <= 0 || view->slot_s() > longest_lead;
  };
  std::vector<DecodeView*> open;
  for (DecodeView& view : views) open.push_back(&view);
  open.erase(std::remove_if(open.begin(), open.end(), closed), open.end());
  int64_t most_room = MostRoom(open);
  std::vector<Turn> fit;
  for (const auto& [request, kept] : kept_) {
    if (open.empty()) break;
    // Its own worker keeps room for it, whether there is enough yet or not.
    DecodeView* const own = kept.worker ? &views[*kept.worker] : nullptr;
    DecodeView* taken = own;
    bool fits = own != nullptr && own->fits(kept.need);
    if (!fits && most_room >= kept.need.expected_tokens) {
      const bool any = kept.avoided.empty();
      if (DecodeView* const other = FindFit(kept.need, any ? open : OpenTo(kept.need, kept.avoided, open, views))) {
        taken = other;
        fits = true;
      }
    }
    if (fits) fit.push_back(request);
    if (taken == nullptr) continue;
    const bool had_most = taken->room() == most_room;
    KeepAt(*taken, kept.need);
    if (closed(taken)) open.erase(std::remove(open.begin(), open.end(), taken), open.end());
    if (had_most) most_room = MostRoom(open);
  }
  return fit;
}

double DecodeQueue::FitsInS(const Turn& request, absl::Span<const DecodeView> workers) const {
  double soonest = std::numeric_limits<double>::infinity();
  const auto found = kept_.find(request);
  if (found == kept_.end()) return soonest;
  const DecodeNeed& need = found->second.need;
  std::vector<DecodeView> views(workers.begin(), workers.end());
  AddKept(request, absl::MakeSpan(views));
  LeaveOut(found->second.avoided, need, absl::MakeSpan(views));
  for (const DecodeView& view : views) {
    if (!view.may_hold(need) || !view.has_room(need)) continue;
    soonest = std::min(soonest, std::max(0.0, view.slot_s() - need.lead_s));
  }
  return soonest;
}

}  // namespace runahead
