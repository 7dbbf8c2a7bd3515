// How the TCP engine makes connections, greets, watches and ends them.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "worker/link/tcp/link_tls.h"
#include "worker/link/tcp/tcp_engine_impl.h"

namespace runahead {
namespace {

// Processes that connected to here. A worker has a few.
constexpr size_t kMaxPeers = 4096;

}  // namespace

TcpEngine::Impl::Channel* TcpEngine::Impl::Find(uint64_t id) const {
  const auto found = channels_.find(id);
  return found == channels_.end() ? nullptr : found->second.get();
}

absl::StatusOr<TcpEngine::Impl::Channel*> TcpEngine::Impl::Add(Descriptor socket, bool calls) {
  const uint64_t id = next_id_++;
  const int fd = socket.get();
  std::unique_ptr<TcpStream> stream;
  if (options_.tls == nullptr) {
    stream = std::make_unique<PlainStream>(std::move(socket));
  } else {
    RUNAHEAD_ASSIGN_OR_RETURN(stream, options_.tls->Over(std::move(socket), calls));
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus(errno, "watching a connection");
  }
  auto channel = std::make_unique<Channel>();
  channel->connection = std::make_unique<TcpConnection>(id, std::move(stream), options_.key, *this,
                                                        [this](std::function<void()> task) { Post(std::move(task)); });
  channel->hello_by = Clock::now() + absl::ToChronoMilliseconds(options_.hello_timeout);
  ungreeted_.insert(id);
  return channels_.emplace(id, std::move(channel)).first->second.get();
}

absl::StatusOr<std::shared_ptr<TcpEngine::Impl::Peer>> TcpEngine::Impl::Reach(const PeerId& id) {
  if (stopped_) return absl::UnavailableError("the engine has stopped");
  if (const auto found = peers_.find(id.key()); found != peers_.end()) {
    if (found->second->id.address == id.address) return found->second;
    return absl::InvalidArgumentError(absl::StrCat(Describe(id.key()), " is known at another link address"));
  }
  if (HasEnded(id.key())) return absl::UnavailableError("the edge's connection has ended");
  RUNAHEAD_ASSIGN_OR_RETURN(Descriptor socket, ConnectTcp(id.address));
  RUNAHEAD_ASSIGN_OR_RETURN(Channel* const channel, Add(std::move(socket), /*calls=*/true));
  auto peer = std::make_shared<Peer>();
  peer->id = id;
  peer->channels.push_back(channel);
  channel->peer = peer;
  channel->made_here = true;
  channel->connection->SendHello(self_, id.key());
  MarkDirty(*channel);
  peers_.emplace(id.key(), peer);
  return peer;
}

absl::Status TcpEngine::Impl::OnHello(TcpConnection& connection, const PeerId& from, const PeerKey& to) {
  Channel& channel = *Find(connection.id());
  if (stopped_) return absl::UnavailableError("the engine has stopped");
  if (to != PeerKey{self_.incarnation, self_.epoch, from.generation})
    return absl::UnavailableError("it is meant for another process");
  if (channel.made_here && !(from == channel.peer->id)) {
    return absl::UnavailableError("another process is at the peer's address");
  }
  if (channel.made_here) return absl::OkStatus();
  strangers_.Greeted(connection.id());
  channel.connection->SendHello(self_, from.key());
  MarkDirty(channel);
  return absl::OkStatus();
}

// Only now: what a stranger claims must not touch the peer that it claims to be.
absl::Status TcpEngine::Impl::OnProved(TcpConnection& connection, const PeerId& from) {
  Channel& channel = *Find(connection.id());
  if (!channel.made_here) RUNAHEAD_RETURN_IF_ERROR(Adopt(channel, from));
  ungreeted_.erase(connection.id());
  strangers_.Remove(connection.id());
  Answered(*channel.peer);
  return absl::OkStatus();
}

absl::Status TcpEngine::Impl::Adopt(Channel& channel, const PeerId& from) {
  std::shared_ptr<Peer> peer = StillThere(from);
  if (peer == nullptr) {
    if (HasEnded(from.key())) return absl::UnavailableError("the edge's connection has ended");
    if (peers_.size() >= kMaxPeers) return absl::ResourceExhaustedError("there are too many peers");
    peer = std::make_shared<Peer>();
    peer->id = from;
    peers_.emplace(from.key(), peer);
  } else if (peer->id.address != from.address) {
    return absl::InvalidArgumentError("it is not who it says it is");
  }
  channel.peer = peer;
  peer->channels.push_back(&channel);
  return absl::OkStatus();
}

std::shared_ptr<TcpEngine::Impl::Peer> TcpEngine::Impl::StillThere(const PeerId& from) {
  const auto found = peers_.find(from.key());
  if (found == peers_.end()) return nullptr;
  const std::shared_ptr<Peer> peer = found->second;
  if (peer->id.address != from.address) return peer;
  Channel* const first = peer->channels.front();
  // A peer has one connection of its own making at a time: it ended the former, which is just not known here yet.
  const absl::Status status =
      peer->channels.back()->made_here ? first->connection->Read() : absl::UnavailableError("the peer connected anew");
  if (!status.ok()) {
    Kill(peer, status);
    return nullptr;
  }
  MarkDirty(*first);  // what came may have asked for bytes
  return peer;
}

void TcpEngine::Impl::Answered(Peer& peer) {
  if (std::exchange(peer.answered, true)) return;
  LogInfo("link", "connected to ", Describe(peer.id.key()), " over tcp ", peer.id.address,
          options_.tls == nullptr ? "" : ", encrypted");
}

int TcpEngine::Impl::CheckHellos() {
  if (ungreeted_.empty() && !paused_) return -1;
  const Clock::time_point now = Clock::now();
  if (paused_ && now >= resume_at_) WatchListener(true);
  while (!ungreeted_.empty()) {  // in the order of their time
    Channel& oldest = *Find(*ungreeted_.begin());
    if (now < oldest.hello_by) break;
    Break(oldest, absl::UnavailableError("the peer did not answer"));
  }
  Clock::time_point next = paused_ ? resume_at_ : Clock::time_point::max();
  if (!ungreeted_.empty()) next = std::min(next, Find(*ungreeted_.begin())->hello_by);
  if (next == Clock::time_point::max()) return -1;
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(next - now).count()) + 1;
}

void TcpEngine::Impl::Break(Channel& channel, const absl::Status& why) {
  if (channel.peer != nullptr) return Kill(channel.peer, why);
  if (const std::optional<int64_t> times = refused_.Happened()) {
    LogWarning("link", "a connection from ", strangers_.HostOf(channel.connection->id()),
               " ends before it has proved who it is: ", why.message(), "; ", *times, " since this was said last");
  }
  Remove(channel, why);
}

void TcpEngine::Impl::Kill(std::shared_ptr<Peer> peer, const absl::Status& why) {
  LogInfo("link", "connection to ", Describe(peer->id.key()), " ends: ", why.message());
  peers_.erase(peer->id.key());
  ended_.Add(peer->id.key());
  const absl::Status dead = absl::UnavailableError(why.message());
  for (const Done& on_death : std::exchange(peer->on_death, {})) on_death(dead);
  for (Channel* channel : std::exchange(peer->channels, {})) Remove(*channel, why);
}

void TcpEngine::Impl::Remove(Channel& channel, const absl::Status& why) {
  const uint64_t id = channel.connection->id();
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, channel.connection->fd(), nullptr);
  ungreeted_.erase(id);
  strangers_.Remove(id);
  const std::unique_ptr<Channel> removed = std::move(channels_.at(id));
  channels_.erase(id);
  ends_.erase(std::remove_if(ends_.begin(), ends_.end(), [](const Event& end) { return end.fired(); }), ends_.end());
  for (Event& end : removed->connection->Fail(why)) {
    if (!end.fired()) ends_.push_back(std::move(end));
  }
}

}  // namespace runahead
