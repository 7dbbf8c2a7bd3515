// The engine: all of it lives on the progress thread, but for the command queue.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/event.h"
#include "server/base/accepter.h"
#include "server/base/rare_line.h"
#include "worker/link/command_queue.h"
#include "worker/link/ended_generations.h"
#include "worker/link/tcp/tcp_connection.h"
#include "worker/link/tcp/tcp_engine.h"
#include "worker/link/tcp/tcp_socket.h"
#include "worker/link/tcp/tcp_strangers.h"

namespace runahead {

class TcpEngine::Impl final : public TcpEngine, public TcpConnection::Listener {
 public:
  Impl(TcpListener listener, Descriptor epoll, const TcpOptions& options);
  ~Impl() override;

  // Any thread:
  const PeerId& self() const override { return self_; }
  void SetHandler(MessageKind kind, Handler handler) override;
  void Connect(const PeerId& id, Done on_death) override;
  void Send(const PeerId& id, MessageKind kind, std::string header, Outbound bytes, Done done) override;
  void Break(const PeerKey& key, const absl::Status& why) override;
  void Close(const PeerKey& key) override;
  void CloseAll(const std::function<bool(const PeerKey&)>& which) override;
  void Stop() override;
  std::string Transport(const PeerId& id) override;

  absl::Status OnHello(TcpConnection& connection, const PeerId& from, const PeerKey& to) override;
  absl::Status OnProved(TcpConnection& connection, const PeerId& from) override;
  void OnMessage(TcpConnection& connection, MessageKind kind, std::string_view header,
                 const std::shared_ptr<const TcpConnection::Offer>& offer) override;
  void OnQueued(TcpConnection& connection) override { MarkDirty(*Find(connection.id())); }
  void OnBroken(TcpConnection& connection, const absl::Status& why) override;

 private:
  using Clock = std::chrono::steady_clock;
  class Payload;
  struct Channel;

  // Another process that there are connections to.
  struct Peer {
    PeerId id;
    std::vector<Channel*> channels;  // we send over the first: the one made here, where one was
    std::vector<Done> on_death;
    bool answered = false;  // its hello is in, and proved
  };
  // A connection and whose it is.
  struct Channel {
    std::unique_ptr<TcpConnection> connection;
    std::shared_ptr<Peer> peer;  // null: a stranger's, who has not proved who it is
    bool made_here = false;
    Clock::time_point hello_by;
    bool dirty = false;        // something was put in its queue
    bool wants_write = false;  // as epoll knows it
  };

  // Runs `command` on the progress thread. False when the engine has stopped.
  bool Post(std::function<void()> command) { return commands_->Post(std::move(command)); }
  // The same, and waits for it.
  void PostAndWait(std::function<void()> command);
  // The same for what ends connections, and for all that these had under way.
  void EndAndWait(std::function<void()> command);

  // All that follows is the progress thread's.
  void Loop();
  void RunCommands();
  void WaitForEvents();
  void HandleEvent(uint64_t id, uint32_t events);
  // Writes what was queued since the last time.
  void Flush();
  void WriteTo(Channel& channel);
  void MarkDirty(Channel& channel);

  // Connections and peers (tcp_engine_peers.cc):
  absl::StatusOr<std::shared_ptr<Peer>> Reach(const PeerId& id);
  // An edge's connection is made once. Were it made again, an end that had not heard of the first one's death would go
  // on over the second one, without the frames that were lost between. Hand-off's (generation 0) is made again.
  bool HasEnded(const PeerKey& key) const { return key.generation > 0 && ended_.Contains(key); }
  // `calls`: it was made here.
  absl::StatusOr<Channel*> Add(Descriptor socket, bool calls);
  // Makes a stranger's channel one of the peer's.
  absl::Status Adopt(Channel& channel, const PeerId& from);
  // The peer of that id if its connections live; what they died of is looked for first.
  std::shared_ptr<Peer> StillThere(const PeerId& from);
  void Answered(Peer& peer);
  // The channel broke: with it the peer dies. The log says so of a stranger's, too, once in a while.
  void Break(Channel& channel, const absl::Status& why);
  void Kill(std::shared_ptr<Peer> peer, const absl::Status& why);
  void EndAll();
  void Remove(Channel& channel, const absl::Status& why);
  // Ends what has not proved its hello in time. Returns milliseconds until the next time is over; -1 for never.
  int CheckHellos();
  Channel* Find(uint64_t id) const;

  // Those who come (tcp_engine_accept.cc):
  void AcceptAll();
  // Sends strangers away where they are too many. False, and nobody is accepted for a moment: the first to go may still
  // be about to say who it is.
  bool MakeRoom();
  void SendAway(const TcpStrangers::Stranger& stranger);
  // Nobody is accepted for a moment, and the log says why.
  void GiveUpAccepting(const char* why);
  void PauseListener(Clock::time_point until);
  void WatchListener(bool watched);

  const TcpOptions options_;
  const TcpListener listener_;
  const Descriptor epoll_;
  const PeerId self_;
  const std::shared_ptr<CommandQueue> commands_;  // payloads may outlive the engine
  std::array<Handler, kMessageKinds> handlers_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Channel>> channels_;  // by the connection's id
  absl::flat_hash_map<PeerKey, std::shared_ptr<Peer>> peers_;
  EndedGenerations ended_;
  Accepter accepter_;
  std::set<uint64_t> ungreeted_;  // connections without a proved hello, oldest first
  TcpStrangers strangers_;        // those of them that others made
  std::vector<uint64_t> dirty_;
  std::vector<Event> ends_;  // of what connections that have ended had under way
  uint64_t next_id_ = 2;     // 0 and 1 are the command queue's and the listener's
  bool paused_ = false;      // the listener, until resume_at_
  Clock::time_point resume_at_;
  RareLine gave_up_{absl::Seconds(10)}, sent_away_{absl::Seconds(10)}, refused_{absl::Seconds(10)};
  bool stopped_ = false;  // nobody is connected to any more
  bool ending_ = false;   // the thread is to end
  std::thread thread_;
};

}  // namespace runahead
