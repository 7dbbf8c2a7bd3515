#include "server/router/coming_beginnings.h"

#include <algorithm>
#include <utility>

#include "scheduler/placement/known_beginnings.h"

namespace runahead {
namespace {

int64_t TokensInCommon(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  const size_t most = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
}

}  // namespace

ComingBeginnings::Entered ComingBeginnings::Enter(absl::string_view salt, absl::Span<const int32_t> ids, absl::Time now,
                                                  absl::Duration takes, Destination to,
                                                  absl::FunctionRef<bool(const Alike&)> pays) {
  MutexLock lock(mu_);
  std::shared_ptr<Prompt> best;
  int64_t most = kLeastKnownTokens - 1;
  // Of several that are as long the newest: it did not wait for the one before, which is late or has no room.
  for (auto prompt = computed_.rbegin(); prompt != computed_.rend(); ++prompt) {
    const int64_t common = (*prompt)->salt == salt ? TokensInCommon((*prompt)->ids, ids) : 0;
    if (common <= most) continue;
    most = common;
    best = *prompt;
    if (most == static_cast<int64_t>(ids.size())) break;  // of many that are equal one is compared
  }
  if (best != nullptr && pays({most, best->ready, best->takes, best->waiting, best->to})) {
    ++best->waiting;
    return {.awaited = std::make_unique<Awaited>(std::move(best), *this), .computed = nullptr};
  }
  auto prompt = std::make_shared<Prompt>();
  prompt->salt = std::string(salt);
  prompt->ids = ids;
  prompt->ready = now + takes;
  prompt->takes = takes;
  prompt->to = std::move(to);
  computed_.push_back(prompt);
  return {.awaited = nullptr, .computed = std::make_unique<Computed>(std::move(prompt), *this)};
}

ComingBeginnings::Computed::~Computed() {
  {
    MutexLock lock(all_.mu_);
    all_.computed_.remove(prompt_);
  }
  prompt_->over.Cancel(absl::CancelledError("it is not computed any more"));
}

// Those that wait keep the old one, which is over: it was for them to decide by where it was to go.
void ComingBeginnings::Computed::GoesTo(const std::shared_ptr<const LiveWorker>& worker, KnownWays ways) {
  auto there = std::make_shared<Prompt>();
  {
    MutexLock lock(all_.mu_);
    prompt_->to.reserved = true;
    if (prompt_->to.worker == worker && prompt_->to.ways == ways) return;
    there->salt = prompt_->salt;
    there->ids = prompt_->ids;
    there->ready = prompt_->ready;
    there->takes = prompt_->takes;
    there->to = prompt_->to;
    there->to.worker = worker;
    there->to.ways = ways;
    std::replace(all_.computed_.begin(), all_.computed_.end(), prompt_, there);
  }
  const std::shared_ptr<Prompt> before = std::exchange(prompt_, std::move(there));
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
