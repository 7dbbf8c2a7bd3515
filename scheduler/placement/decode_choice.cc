#include "scheduler/placement/decode_choice.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

// Why there is no worker to ask.
absl::Status NoneToAsk(int64_t tokens, absl::Span<const DecodeView> workers) {
  int64_t largest = 0;
  bool any_ready = false, may_come = false;
  for (const DecodeView& worker : workers) {
    any_ready |= worker.ready;
    may_come |= worker.capacity_tokens >= tokens;
    largest = std::max(largest, worker.capacity_tokens);
  }
  if (!may_come && largest > 0) {
    return absl::OutOfRangeError(absl::StrCat("stop.max_tokens: prompt and output need KV memory for ", tokens,
                                              " tokens; the largest decode worker holds ", largest));
  }
  if (!any_ready) return absl::UnavailableError("no decode worker is ready");
  return absl::UnavailableError(
      absl::StrCat("no decode worker whose KV memory holds ", tokens, " tokens of prompt and output is ready"));
}

}  // namespace

bool HasRoomBehind(DecodeView worker, const DecodeNeed& need, const ComingLease& coming) {
  worker.taken_slots += coming.waiting - (coming.returned ? 1 : 0);
  if (!worker.may_hold(need) || worker.slot_s() > std::max(0.0, coming.in_s)) return false;
  const int64_t of_coming = coming.need.counted(worker.grows);
  if (coming.reserved && coming.returned) worker.reserved_tokens -= of_coming;
  if (!coming.reserved && !coming.returned) worker.reserved_tokens += of_coming;
  // Where some is kept for others a lease is not asked for unless there is room for all of it.
  const bool shares = !coming.returned && worker.kept_tokens == 0;
  const int64_t each = need.counted(worker.grows) - (shares ? coming.shared_tokens : 0);
  return worker.room() >= (coming.waiting + 1) * std::max<int64_t>(0, each);
}

bool OthersMayHold(const std::set<int>& avoided, const DecodeNeed& need, absl::Span<const DecodeView> workers) {
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].may_hold(need) && !avoided.contains(static_cast<int>(i))) return true;
  }
  return false;
}

double DecodeView::slot_s() const {
  if (slots == kSlotsUntold) return 0;
  const int64_t must_end = taken_slots + kept_slots + 1 - slots;
  if (must_end <= 0) return 0;
  if (must_end > static_cast<int64_t>(ends_s.size())) return std::numeric_limits<double>::infinity();
  return ends_s[must_end - 1];
}

double DecodeView::share() const {
  if (slots == kSlotsUntold) return 0;
  return static_cast<double>(taken_slots + kept_slots) / static_cast<double>(slots);
}

void LeaveOut(const std::set<int>& avoided, const DecodeNeed& need, absl::Span<DecodeView> workers) {
  if (avoided.empty() || !OthersMayHold(avoided, need, workers)) return;
  for (const int index : avoided) workers[index].ready = false;
}

absl::StatusOr<std::vector<size_t>> RankDecodeWorkers(const DecodeNeed& need, absl::Span<const DecodeView> workers) {
  std::vector<size_t> ranked;
  bool kept = false, no_slot = false;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].may_hold(need)) continue;
    if (workers[i].slot_s() > need.lead_s) {
      no_slot = true;
    } else if (workers[i].kept_tokens > 0 && !workers[i].has_room(need)) {
      kept = true;
    } else {
      ranked.push_back(i);
    }
  }
  if (ranked.empty() && kept) {
    return absl::ResourceExhaustedError("the decode workers keep their memory for requests that came before");
  }
  if (ranked.empty() && no_slot) {
    return absl::ResourceExhaustedError("the decode workers step as many sequences as they can (max_batch)");
  }
  if (ranked.empty()) return NoneToAsk(need.tokens, workers);
  const auto rank = [&](size_t i) {
    const DecodeView& worker = workers[i];
    return std::make_tuple(!worker.has_room(need), worker.share(), -worker.room(), worker.leases, i);
  };
  std::sort(ranked.begin(), ranked.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
  return ranked;
}

}  // namespace runahead
