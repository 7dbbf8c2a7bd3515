// The engine behind TcpEngine: all of it lives on the progress thread, but for the command queue.
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
#include "worker/link/command_queue.h"
#include "worker/link/ended_generations.h"
#include "worker/link/tcp/tcp_connection.h"
#include "worker/link/tcp/tcp_engine.h"
#include "worker/link/tcp/tcp_socket.h"

namespace runahead {

class TcpEngine::Impl final : public TcpConnection::Listener {
 public:
  Impl(TcpListener listener, Descriptor epoll, const TcpOptions& options);
  ~Impl() override;

  const PeerId& self() const { return self_; }
  // Runs `command` on the progress thread. False when the engine has stopped.
  bool Post(std::function<void()> command) { return commands_->Post(std::move(command)); }
  // The same, and waits for it.
  void PostAndWait(std::function<void()> command);

  // On the progress thread:
  void SetHandler(MessageKind kind, Handler handler) { handlers_[static_cast<size_t>(kind)] = std::move(handler); }
  void Connect(const PeerId& id, Done on_death);
  void Send(const PeerId& id, MessageKind kind, const std::string& header, ConstBufferRef bytes, Done done);
  void Close(const PeerKey& key);
  // All that a process in that epoch is reached over.
  std::vector<PeerKey> KeysOf(uint64_t incarnation, uint32_t epoch) const;
  void Stop();
  std::string Transport(const PeerId& id) const;

  absl::Status OnHello(TcpConnection& connection, const PeerId& from, const PeerKey& to) override;
  absl::Status OnProved(TcpConnection& connection, const PeerId& from) override;
  void OnEager(TcpConnection& connection, MessageKind kind, std::string_view header,
               std::shared_ptr<MessagePayload> payload) override;
  void OnOffer(TcpConnection& connection, MessageKind kind, std::string_view header, uint64_t transfer,
               uint64_t bytes) override;

 private:
  using Clock = std::chrono::steady_clock;
  class OfferedPayload;
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

  void Loop();
  void RunCommands();
  void WaitForEvents();
  void HandleEvent(uint64_t id, uint32_t events);
  // Writes what was queued since the last time.
  void Flush();
  void WriteTo(Channel& channel);
  void MarkDirty(Channel& channel);
  void Deliver(const Channel& channel, MessageKind kind, std::string_view header,
               std::shared_ptr<MessagePayload> payload);

  // Connections and peers (tcp_engine_peers.cc):
  absl::StatusOr<std::shared_ptr<Peer>> Reach(const PeerId& id);
  // An edge's connection is made once. Were it made again, an end that had not heard of the first one's death would go
  // on over the second one, without the frames that were lost between. Hand-off's (generation 0) is made again.
  bool HasEnded(const PeerKey& key) const { return key.generation > 0 && ended_.Contains(key); }
  absl::StatusOr<Channel*> Add(Descriptor socket);
  void AcceptAll();
  // Nobody is accepted for a moment.
  void PauseListener(const char* why);
  void WatchListener(bool watched);
  // Makes a stranger's channel one of the peer's.
  absl::Status Adopt(Channel& channel, const PeerId& from);
  // The peer of that id if its connections live; what they died of is looked for first.
  std::shared_ptr<Peer> StillThere(const PeerId& from);
  void Answered(Peer& peer);
  // The channel broke: with it the peer dies.
  void Break(Channel& channel, const absl::Status& why);
  void Kill(const std::shared_ptr<Peer>& peer, const absl::Status& why);
  void Remove(Channel& channel, const absl::Status& why);
  // Ends what has not proved its hello in time. Returns milliseconds until the next time is over; -1 for never.
  int CheckHellos();
  Channel* Find(uint64_t id) const;

  const TcpOptions options_;
  const TcpListener listener_;
  const Descriptor epoll_;
  const PeerId self_;
  const std::shared_ptr<CommandQueue> commands_;  // payloads may outlive the engine
  std::array<Handler, kMessageKinds> handlers_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Channel>> channels_;  // by the connection's id
  absl::flat_hash_map<PeerKey, std::shared_ptr<Peer>> peers_;
  EndedGenerations ended_;
  std::set<uint64_t> ungreeted_;  // connections without a proved hello, oldest first
  std::set<uint64_t> strangers_;  // those of them that others made
  std::vector<uint64_t> dirty_;
  uint64_t next_id_ = 2;  // 0 and 1 are the command queue's and the listener's
  bool paused_ = false;   // the listener, until resume_at_
  Clock::time_point resume_at_;
  Clock::time_point say_pause_at_;
  bool stopped_ = false;  // nobody is connected to any more
  bool ending_ = false;   // the thread is to end
  std::thread thread_;
};

}  // namespace runahead
