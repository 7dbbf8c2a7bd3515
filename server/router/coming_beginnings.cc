#include "server/router/coming_beginnings.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "scheduler/placement/known_beginnings.h"

namespace runahead {

int64_t ComingBeginnings::TokensInCommon(const Key& a, const Key& b) {
  if (a.salt != b.salt) return 0;
  const size_t most = std::min(a.ids.size(), b.ids.size());
  return std::mismatch(a.ids.begin(), a.ids.begin() + most, b.ids.begin()).first - a.ids.begin();
}

bool ComingBeginnings::Key::operator<(const Key& other) const {
  if (salt != other.salt) return salt < other.salt;
  return std::lexicographical_compare(ids.begin(), ids.end(), other.ids.begin(), other.ids.end());
}

// Between two entries that have n tokens in common all have these, so that only the two beside `key` are compared with
// it. Of several that are as long the newest: it did not wait for the one before, which is late or has no room.
ComingBeginnings::Best ComingBeginnings::FindBest(const Key& key, Entries::iterator next) {
  const int64_t before = next == computed_.begin() ? 0 : TokensInCommon(key, std::prev(next)->first);
  const int64_t behind = next == computed_.end() ? 0 : TokensInCommon(key, next->first);
  const int64_t most = std::max(before, behind);
  if (most < kLeastKnownTokens) return {};
  const Entry* best = nullptr;
  const auto look = [&](const Entry& entry) {
    if (best == nullptr || entry.number > best->number) best = &entry;
  };
  if (before == most) {
    for (auto entry = next; entry != computed_.begin();) {
      look((--entry)->second);
      if (entry->second.common_with_neighbour < most) break;
    }
  }
  if (behind == most) {
    auto entry = next;
    do {
      look(entry->second);
    } while (++entry != computed_.end() && entry->second.common_with_neighbour >= most);
  }
  return {best->prompt, most};
}

ComingBeginnings::Entries::iterator ComingBeginnings::Add(Key key, Entries::iterator next,
                                                          std::shared_ptr<Prompt> prompt) {
  if (next != computed_.end()) next->second.common_with_neighbour = TokensInCommon(key, next->first);
  const auto entry = computed_.emplace_hint(next, std::move(key), Entry{std::move(prompt), entered_++});
  if (entry != computed_.begin()) {
    entry->second.common_with_neighbour = TokensInCommon(entry->first, std::prev(entry)->first);
  }
  return entry;
}

void ComingBeginnings::Remove(Entries::iterator entry) {
  const int64_t common = entry->second.common_with_neighbour;
  const auto next = computed_.erase(entry);
  if (next == computed_.end()) return;
  next->second.common_with_neighbour = std::min(next->second.common_with_neighbour, common);
}

ComingBeginnings::Entered ComingBeginnings::Enter(absl::string_view salt, absl::Span<const int32_t> ids, absl::Time now,
                                                  absl::Duration takes, Destination to,
                                                  absl::FunctionRef<bool(const Alike&)> pays) {
  MutexLock lock(mu_);
  Key key{std::string(salt), ids};
  const auto next = computed_.upper_bound(key);
  Best best = FindBest(key, next);
  if (best.prompt != nullptr &&
      pays({best.common, best.prompt->ready, best.prompt->takes, best.prompt->waiting, best.prompt->to})) {
    ++best.prompt->waiting;
    return {.awaited = std::make_unique<Awaited>(std::move(best.prompt), *this), .computed = nullptr};
  }
  auto prompt = std::make_shared<Prompt>();
  prompt->ready = now + takes;
  prompt->takes = takes;
  prompt->to = std::move(to);
  const auto entry = Add(std::move(key), next, std::move(prompt));
  return {.awaited = nullptr, .computed = std::make_unique<Computed>(entry, *this)};
}

ComingBeginnings::Computed::~Computed() {
  std::shared_ptr<Prompt> prompt;
  {
    MutexLock lock(all_.mu_);
    prompt = std::move(entry_->second.prompt);
    all_.Remove(entry_);
  }
  prompt->over.Cancel(absl::CancelledError("it is not computed any more"));
}

// Those that wait keep the old one, which is over: it was for them to decide by where it was to go.
void ComingBeginnings::Computed::GoesTo(const std::shared_ptr<const LiveWorker>& worker, KnownWays ways) {
  auto there = std::make_shared<Prompt>();
  std::shared_ptr<Prompt> before;
  {
    MutexLock lock(all_.mu_);
    std::shared_ptr<Prompt>& prompt = entry_->second.prompt;
    prompt->to.reserved = true;
    if (prompt->to.worker == worker && prompt->to.ways == ways) return;
    there->ready = prompt->ready;
    there->takes = prompt->takes;
    there->to = prompt->to;
    there->to.worker = worker;
    there->to.ways = ways;
    before = std::exchange(prompt, std::move(there));
  }
  before->over.Cancel(absl::CancelledError("it goes elsewhere than was expected"));
}

ComingBeginnings::Awaited::~Awaited() {
  MutexLock lock(all_.mu_);
  --prompt_->waiting;
}

CancelToken& ComingBeginnings::Awaited::over() const {
  return prompt_->over;
}

}  // namespace runahead
