// Whom the TCP engine takes in at its port, and who goes where too many come.
#include <sys/epoll.h>

#include <optional>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/base/descriptor_limit.h"
#include "server/base/logging.h"
#include "worker/link/tcp/tcp_engine_impl.h"

namespace runahead {
namespace {

// Accepted before those that are here have their turn.
constexpr int kAcceptBatch = 64;
// What a peer says when it has connected is here by then, and so nobody is sent away before. It also bounds what a
// crowd that comes back at once costs.
constexpr std::chrono::milliseconds kTimeToSpeak{10};
// When nobody can be accepted it is tried again after this time.
constexpr std::chrono::milliseconds kAcceptPause{100};

}  // namespace

void TcpEngine::Impl::AcceptAll() {
  for (int i = 0; i < kAcceptBatch; ++i) {
    if (!MakeRoom()) return;
    absl::StatusOr<std::optional<NewConnection>> next = accepter_.Next(listener_.descriptor);
    if (absl::IsResourceExhausted(next.status())) {
      return GiveUpAccepting("no descriptor is left to accept a connection (see ulimit -n)");
    }
    if (!next.ok()) return GiveUpAccepting("the link's port takes no connections any more");
    if (!next->has_value()) return;
    NewConnection& made = **next;
    if (IsAmongTheLast(made.socket.get(), KeptDescriptors() / 2)) {
      return GiveUpAccepting("a connection was closed, for too few descriptors are left (see ulimit -n)");
    }
    TuneTcp(made.socket);
    if (const absl::StatusOr<Channel*> channel = Add(std::move(made.socket), /*calls=*/false); channel.ok()) {
      strangers_.Add((*channel)->connection->id(), PeerHost(made.peer), Clock::now());
    }
  }
}

bool TcpEngine::Impl::MakeRoom() {
  while (strangers_.size() > options_.max_strangers) {
    const TcpStrangers::Stranger first = strangers_.First();
    HandleEvent(first.id, EPOLLIN);  // it may have said who it is, unread
    if (strangers_.size() <= options_.max_strangers || strangers_.First().id != first.id) continue;
    if (Clock::now() < first.since + kTimeToSpeak) {
      PauseListener(first.since + kTimeToSpeak);
      return false;
    }
    SendAway(first);
  }
  return true;
}

void TcpEngine::Impl::SendAway(const TcpStrangers::Stranger& stranger) {
  Remove(*Find(stranger.id), absl::ResourceExhaustedError("others came, and it had not proved who it is"));
  const std::optional<int64_t> went = sent_away_.Happened();
  if (!went.has_value()) return;
  LogWarning("link", "connections that have not said who they are go as others come, the last one from ", stranger.host,
             ": ", strangers_.size(), " are open, ", *went, " went since this was said last");
}

void TcpEngine::Impl::GiveUpAccepting(const char* why) {
  if (gave_up_.Happened().has_value()) LogWarning("link", why, "; trying again");
  PauseListener(Clock::now() + kAcceptPause);
}

void TcpEngine::Impl::PauseListener(Clock::time_point until) {
  WatchListener(false);
  resume_at_ = until;
}

void TcpEngine::Impl::WatchListener(bool watched) {
  paused_ = !watched;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 1;
  // Taken out, for one that is left in without events is still told of the listener's end, over and over.
  const int change = watched ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;
  RUNAHEAD_CHECK(epoll_ctl(epoll_.get(), change, listener_.descriptor.get(), &event) == 0);
}

}  // namespace runahead
