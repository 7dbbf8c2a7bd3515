#include "worker/link/edge_directory.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

// Messages kept for a peer before this side has opened its edge, and how many such peers. Both sides open when the line
// forms, so few messages wait, and not for long.
constexpr size_t kStashedMessages = 4096;
constexpr size_t kStashedPeers = 64;
constexpr char kFlood[] = " floods an edge that is not open here; messages discarded since the last such line: ";

}  // namespace

absl::StatusOr<std::shared_ptr<EdgeCore>> EdgeDirectory::Open(const PeerId& peer,
                                                              const std::function<EdgeEnd()>& make) {
  EdgeEnd end;
  {
    MutexLock lock(mu_);
    if (stopped_) return absl::UnavailableError("the link has stopped");
    if (closed_.Contains(peer.key())) return absl::UnavailableError("the edge was closed here");
    Side& side = sides_[peer.key()];
    if (side.end.core != nullptr) {
      if (!(side.peer == peer)) {
        return absl::InvalidArgumentError(absl::StrCat(Describe(peer.key()), " is known at another link address"));
      }
      RUNAHEAD_RETURN_IF_ERROR(side.end.core->known_health());
      return side.end.core;
    }
    side.peer = peer;
    side.end = end = make();
    side.opening = true;
    engine_->Connect(peer, [directory = shared_from_this(), peer](const absl::Status& why) {
      if (const auto dead = directory->Find(peer).core) dead->Die(absl::UnavailableError(why.message()));
    });
  }
  DeliverStash(peer.key(), end);
  return end.core;
}

void EdgeDirectory::DeliverStash(const PeerKey& key, const EdgeEnd& end) {
  for (;;) {
    std::deque<Delivery> stash;
    {
      MutexLock lock(mu_);
      const auto side = sides_.find(key);
      if (side == sides_.end() || side->second.end.core != end.core) return;  // closed meanwhile
      stash.swap(side->second.stash);
      side->second.opening = !stash.empty();
    }
    if (stash.empty()) return;
    for (const Delivery& delivery : stash) delivery(*end.wire);
  }
}

void EdgeDirectory::Deliver(const PeerKey& from, Delivery delivery) {
  std::shared_ptr<EdgeWire> wire;
  Side evicted;  // destroyed without the lock
  LogLater later;
  {
    MutexLock lock(mu_);
    if (stopped_ || closed_.Contains(from)) return;
    const auto [found, is_new] = sides_.try_emplace(from);
    wire = found->second.end.wire;
    if (found->second.opening) return found->second.stash.push_back(std::move(delivery));  // behind what came before
    if (wire == nullptr) {
      if (is_new) unopened_.push_back(from);
      if (found->second.stash.size() >= kStashedMessages) {
        if (const std::optional<int64_t> messages = flood_.Happened()) {
          later.Warning("link", Describe(from), kFlood, *messages);
        }
        return;
      }
      found->second.stash.push_back(std::move(delivery));
      if (unopened_.size() <= kStashedPeers) return;
      const auto oldest = sides_.find(unopened_.front());
      unopened_.pop_front();
      if (oldest == sides_.end() || oldest->second.end.wire != nullptr) return;
      evicted = std::move(oldest->second);
      sides_.erase(oldest);
      return;
    }
  }
  delivery(*wire);
}

EdgeEnd EdgeDirectory::Find(const PeerId& peer) const {
  MutexLock lock(mu_);
  const auto found = sides_.find(peer.key());
  return found == sides_.end() ? EdgeEnd() : found->second.end;
}

void EdgeDirectory::Send(const PeerId& peer, MessageKind kind, std::string header, Outbound bytes,
                         MessageEngine::Done done) {
  {
    MutexLock lock(mu_);  // held while the command is handed over, so that none follows Stop
    const auto side = sides_.find(peer.key());
    if (!stopped_ && side != sides_.end() && side->second.end.core != nullptr &&
        side->second.end.core->known_health().ok()) {
      return engine_->Send(peer, kind, std::move(header), std::move(bytes), std::move(done));
    }
  }
  done(absl::UnavailableError("the edge is dead"));
}

void EdgeDirectory::Break(const PeerId& peer, const absl::Status& why) {
  MutexLock lock(mu_);
  if (!stopped_) engine_->Break(peer.key(), why);
}

void EdgeDirectory::Close(const PeerId& peer) {
  const EdgeEnd end = Find(peer);
  if (end.core != nullptr) end.core->Die(absl::UnavailableError("the edge was closed here"));
  engine_->Close(peer.key());
  if (end.core == nullptr) return;
  end.wire->AwaitEnd();
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
    absl::erase_if(sides, [](const auto& side) { return side.second.end.core == nullptr; });
  }
  for (const auto& [key, side] : sides) side.end.core->Die(absl::UnavailableError("the link was closed here"));
  for (const auto& [key, side] : sides) engine_->Close(key);
  for (const auto& [key, side] : sides) side.end.wire->AwaitEnd();
}

size_t EdgeDirectory::live_jobs(const PeerId& peer) const {
  const EdgeEnd end = Find(peer);
  return end.core == nullptr ? 0 : end.core->live_jobs();
}

}  // namespace runahead
