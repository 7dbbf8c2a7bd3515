#include "worker/link/edge_directory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

// Messages kept for a peer before this side has opened its edge, and how many such peers. Both sides open when the line
// forms, so few messages wait, and not for long.
constexpr size_t kStashedMessages = 4096;
constexpr size_t kStashedPeers = 64;
constexpr absl::Duration kFloodLogPeriod = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::shared_ptr<EdgeEnd>> EdgeDirectory::Open(const PeerId& peer,
                                                             const std::function<std::shared_ptr<EdgeEnd>()>& make) {
  std::shared_ptr<EdgeEnd> end;
  {
    MutexLock lock(mu_);
    if (stopped_) return absl::UnavailableError("the link has stopped");
    if (closed_.Contains(peer.key())) return absl::UnavailableError("the edge was closed here");
    Side& side = sides_[peer.key()];
    if (side.end != nullptr) {
      if (!(side.peer == peer)) {
        return absl::InvalidArgumentError(absl::StrCat(Describe(peer.key()), " is known at another link address"));
      }
      RUNAHEAD_RETURN_IF_ERROR(side.end->core->Health());
      return side.end;
    }
    side.peer = peer;
    side.end = end = make();
    side.opening = true;
    engine_->Connect(peer, [directory = shared_from_this(), peer](const absl::Status& why) {
      if (const auto dead = directory->Find(peer); dead != nullptr) dead->Die(absl::UnavailableError(why.message()));
    });
  }
  DeliverStash(peer.key(), end);
  return end;
}

void EdgeDirectory::DeliverStash(const PeerKey& key, const std::shared_ptr<EdgeEnd>& end) {
  for (;;) {
    std::deque<Delivery> stash;
    {
      MutexLock lock(mu_);
      const auto side = sides_.find(key);
      if (side == sides_.end() || side->second.end != end) return;  // closed meanwhile
      stash.swap(side->second.stash);
      side->second.opening = !stash.empty();
    }
    if (stash.empty()) return;
    for (const Delivery& delivery : stash) delivery(*end);
  }
}

void EdgeDirectory::Deliver(const PeerKey& from, Delivery delivery) {
  std::shared_ptr<EdgeEnd> end;
  Side evicted;  // destroyed without the lock
  {
    MutexLock lock(mu_);
    if (stopped_ || closed_.Contains(from)) return;
    const auto [found, is_new] = sides_.try_emplace(from);
    end = found->second.end;
    if (found->second.opening) return found->second.stash.push_back(std::move(delivery));  // behind what came before
    if (end == nullptr) {
      if (is_new) unopened_.push_back(from);
      if (found->second.stash.size() >= kStashedMessages) return LogFlood(from);
      found->second.stash.push_back(std::move(delivery));
      if (unopened_.size() <= kStashedPeers) return;
      const auto oldest = sides_.find(unopened_.front());
      unopened_.pop_front();
      if (oldest == sides_.end() || oldest->second.end != nullptr) return;
      evicted = std::move(oldest->second);
      sides_.erase(oldest);
      return;
    }
  }
  delivery(*end);
}

void EdgeDirectory::LogFlood(const PeerKey& from) {
  ++discarded_;
  const absl::Time now = MonotonicNow();
  if (now - flood_logged_ < kFloodLogPeriod) return;
  flood_logged_ = now;
  LogWarning("link", Describe(from),
             " floods an edge that is not open here; messages discarded since the last such line: ",
             std::exchange(discarded_, 0));
}

std::shared_ptr<EdgeEnd> EdgeDirectory::Find(const PeerId& peer) const {
  MutexLock lock(mu_);
  const auto found = sides_.find(peer.key());
  return found == sides_.end() ? nullptr : found->second.end;
}

void EdgeDirectory::Send(const PeerId& peer, MessageKind kind, std::string header, ConstBufferRef bytes,
                         MessageEngine::Done done) {
  {
    MutexLock lock(mu_);  // held while the command is handed over, so that none follows Stop
    const auto side = sides_.find(peer.key());
    if (!stopped_ && side != sides_.end() && side->second.end != nullptr && side->second.end->core->Health().ok()) {
      return engine_->Send(peer, kind, std::move(header), std::move(bytes), std::move(done));
    }
  }
  done(absl::UnavailableError("the edge is dead"));
}

void EdgeDirectory::Close(const PeerId& peer) {
  const std::shared_ptr<EdgeEnd> end = Find(peer);
  if (end != nullptr) end->Die(absl::UnavailableError("the edge was closed here"));
  engine_->Close(peer.key());
  if (end == nullptr) return;
  end->AwaitEnd();
  MutexLock lock(mu_);
  closed_.Add(peer.key());
  sides_.erase(peer.key());  // `end` is held here still
}

void EdgeDirectory::Stop() {
  absl::flat_hash_map<PeerKey, Side> sides;
  {
    MutexLock lock(mu_);
    stopped_ = true;
    sides.swap(sides_);
    absl::erase_if(sides, [](const auto& side) { return side.second.end == nullptr; });
  }
  for (const auto& [key, side] : sides) side.end->Die(absl::UnavailableError("the link was closed here"));
  for (const auto& [key, side] : sides) engine_->Close(key);
  for (const auto& [key, side] : sides) side.end->AwaitEnd();
}

size_t EdgeDirectory::live_jobs(const PeerId& peer) const {
  const auto end = Find(peer);
  return end == nullptr ? 0 : end->core->live_jobs();
}

}  // namespace runahead
