#include "server/router/known_index.h"

#include <numeric>

namespace runahead {
namespace {

KnownBeginnings::Life LifeOf(const LiveWorker& worker) {
  return {worker.capabilities.incarnation(), worker.capabilities.epoch()};
}

// It takes nothing new any more.
bool Leaves(const LiveWorker& worker) {
  return worker.lost->cancelled() || *worker.drains;
}

}  // namespace

void KnownIndex::Learn(const LiveWorker& worker, absl::string_view salt, absl::Span<const int32_t> ids) {
  if (!on_ || !HasBeginnings(worker.capabilities) || Leaves(worker)) return;
  {
    MutexLock lock(mu_);
    known_.Learn(LifeOf(worker), worker.capabilities.kv_capacity_tokens(), salt, ids, ++lessons_);
  }
  ForgetOthers();
}

std::vector<KnownIndex::Found> KnownIndex::Find(absl::Span<const std::shared_ptr<const LiveWorker>> workers,
                                                absl::string_view salt, absl::Span<const int32_t> ids) {
  std::vector<Found> found;
  if (!on_) return found;
  ForgetOthers();
  MutexLock lock(mu_);
  for (const std::shared_ptr<const LiveWorker>& worker : workers) {
    const int64_t tokens = known_.Known(LifeOf(*worker), salt, ids);
    const auto rests = rests_.find(worker->index);
    if (tokens > 0) found.push_back({worker, tokens, rests == rests_.end() ? 0 : rests->second});
  }
  return found;
}

void KnownIndex::Gone(const LiveWorker& worker, absl::string_view salt, absl::Span<const int32_t> ids, int64_t least,
                      uint64_t asked) {
  if (worker.capabilities.window() > 0) return;
  MutexLock lock(mu_);
  known_.Gone(LifeOf(worker), salt, ids, least, asked);
}

void KnownIndex::Evicted(const LiveWorker& worker, absl::Span<const uint64_t> hashes, uint64_t asked) {
  MutexLock lock(mu_);
  known_.Evicted(LifeOf(worker), hashes, asked);
  ShowSize();
}

KnownIndex::Rest::Rest(KnownIndex& index, const LiveWorker& worker) : index_(index), worker_(worker.index) {
  MutexLock lock(index_.mu_);
  ++index_.rests_[worker_];
}

KnownIndex::Rest::~Rest() {
  MutexLock lock(index_.mu_);
  if (--index_.rests_[worker_] == 0) index_.rests_.erase(worker_);
}

KnownBeginnings::Size KnownIndex::SizeOf(const LiveWorker& worker, std::optional<absl::string_view> salt) {
  MutexLock lock(mu_);
  return known_.SizeOf(LifeOf(worker), salt);
}

KnownBeginnings::Size KnownIndex::SizeOfAll(std::optional<absl::string_view> salt) {
  ForgetOthers();
  MutexLock lock(mu_);
  return known_.SizeOfAll(salt);
}

int64_t KnownIndex::Forget(std::optional<absl::string_view> salt) {
  MutexLock lock(mu_);
  const int64_t tokens = known_.SizeOfAll(salt).tokens;
  known_.Forget(salt);
  ShowSize();
  return tokens;
}

// Found by looking at who is there: news of a loss need not wait for this lock.
void KnownIndex::ForgetOthers() {
  std::vector<size_t> seats(fleet_.workers().size());
  std::iota(seats.begin(), seats.end(), size_t{0});
  std::vector<KnownBeginnings::Life> lives;
  for (const std::shared_ptr<const LiveWorker>& worker : fleet_.Live(seats)) {
    if (HasBeginnings(worker->capabilities) && !Leaves(*worker)) lives.push_back(LifeOf(*worker));
  }
  MutexLock lock(mu_);
  known_.Retain(lives);
  ShowSize();
}

void KnownIndex::ShowSize() {
  const KnownBeginnings::Size size = known_.SizeOfAll();
  metrics_.SetKnownIndex(size.tokens, size.bytes);
}

}  // namespace runahead
