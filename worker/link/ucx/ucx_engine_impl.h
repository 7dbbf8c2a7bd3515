// The engine behind UcxEngine: all of it lives on the progress thread, but for the command queue.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "kernels/base/event.h"
#include "worker/link/command_queue.h"
#include "worker/link/ended_generations.h"
#include "worker/link/ucx/ucx_context.h"
#include "worker/link/ucx/ucx_engine.h"

namespace runahead {

class UcxEngine::Impl {
 public:
  Impl(std::unique_ptr<UcxContext> context, const UcxOptions& options);
  ~Impl();

  const PeerId& self() const { return self_; }
  // Runs `command` on the progress thread. False when the engine has stopped.
  bool Post(std::function<void()> command) { return commands_->Post(std::move(command)); }
  // The same, and waits for it.
  void PostAndWait(std::function<void()> command);

  // On the progress thread:
  void SetHandler(MessageKind kind, Handler handler) { handlers_[static_cast<size_t>(kind)] = std::move(handler); }
  void Connect(const PeerId& id, Done on_death);
  void Send(const PeerId& id, MessageKind kind, const std::string& header, ConstBufferRef bytes, Done done);
  // `closed` fires when UCX holds nothing of the peer.
  void Close(const PeerKey& key, const EventSource& closed);
  // All that a process in that epoch is reached over, or was and UCX has yet to let go.
  std::vector<PeerKey> KeysOf(uint64_t incarnation, uint32_t epoch) const;
  // Begins to end all connections; `closed` fires when UCX holds nothing of any peer.
  void Stop(const EventSource& closed);
  std::string Transport(const PeerId& id) const;

 private:
  class RendezvousPayload;

  struct Peer;
  // Something that UCX works on, or will. Deleted by Complete.
  struct Op {
    Impl* engine = nullptr;
    std::shared_ptr<Peer> peer;
    std::string header;  // with its prefix; read by UCX until the end
    std::vector<BufferRef> buffers;
    std::vector<ucp_dt_iov_t> pieces;
    Done done;
  };

  // One connection of UCX's, made from here or there. Pinned in memory from its making until UCX has closed it.
  struct Channel {
    Impl* engine = nullptr;
    std::weak_ptr<Peer> peer;  // expired: nobody has said hello over it yet
    ucp_ep_h endpoint = nullptr;
    absl::Time hello_by;
    bool close_started = false;
    ucs_status_ptr_t close_request = nullptr;
    absl::Time give_up_at;  // set with close_started
  };

  // Another process, from its first connection until UCX gave back all that it held of it.
  struct Peer {
    PeerId id;
    std::vector<std::unique_ptr<Channel>> channels;  // we send over the first; two when both sides connected at once
    std::unordered_set<Op*> ops;                     // under way in UCX
    bool open = false;                               // what went out first has left
    std::vector<Op*> held;                           // messages, until then
    std::vector<Done> on_death;
    bool answered = false;  // a message came from it
    absl::Time answer_by;
    // Set by Kill:
    bool dying = false;
    bool farewell = false;  // the goodbye is under way
    absl::Time farewell_until, give_up_at;
    std::vector<std::shared_ptr<void>> closed;  // let go when UCX holds nothing of the peer
  };

  void Loop();
  void RunCommands();
  void Sleep();
  absl::StatusOr<std::shared_ptr<Peer>> Reach(const PeerId& id);
  // As TcpEngine's: an edge's connection is made once.
  bool HasEnded(const PeerKey& key) const { return key.generation > 0 && ended_.Contains(key); }
  // Null when there is no connection.
  std::shared_ptr<Peer> FindPeer(const PeerKey& key) const;
  void SendTo(const std::shared_ptr<Peer>& peer, MessageKind kind, const std::string& header, ConstBufferRef bytes,
              Done done);
  void StartSend(Op* op, uint32_t flags);
  // To be called when the peer's first message has left: UCX 1.13 lets later messages overtake those that it was given
  // while it made the connection.
  void Open(Peer& peer);
  void Receive(void* descriptor, const std::shared_ptr<Peer>& from, std::vector<BufferRef> into, ReceiveDone done);
  void Discard(void* descriptor);
  void Started(Op* op, ucs_status_ptr_t request);
  void Complete(Op* op, ucs_status_t status);
  void Kill(const std::shared_ptr<Peer>& peer, const absl::Status& why, bool say_goodbye);
  void AdvanceDying();
  // True when UCX holds nothing of the peer any more, or will never give it back.
  bool Settle(const std::shared_ptr<Peer>& peer);
  // True when UCX has closed the connection; begins with that at the first call.
  bool Close(Channel& channel);
  void HandleConnection(ucp_conn_request_h request);
  void HandleOwn(MessageKind kind, const PeerId& from, ucp_ep_h over);
  void HandleHello(const PeerId& from, ucp_ep_h over);
  void Answered(Peer& peer);
  // Ends the connections whose peers should have answered, or said hello, by now.
  void CheckAnswers();
  ucs_status_t HandleMessage(std::string_view header, void* data, size_t length, bool rendezvous, ucp_ep_h over);

  static ucs_status_t OnMessage(void* arg, const void* header, size_t header_length, void* data, size_t length,
                                const ucp_am_recv_param_t* param);
  static void OnEndpointError(void* channel, ucp_ep_h endpoint, ucs_status_t status);
  static void OnSent(void* request, ucs_status_t status, void* op);
  static void OnReceived(void* request, ucs_status_t status, size_t length, void* op);

  std::unique_ptr<UcxContext> context_;
  const PeerId self_;
  const ClusterKey key_;
  const std::shared_ptr<CommandQueue> commands_ = std::make_shared<CommandQueue>();  // payloads may outlive the engine
  std::array<Handler, kMessageKinds> handlers_;
  absl::flat_hash_map<PeerKey, std::shared_ptr<Peer>> peers_;  // alive
  EndedGenerations ended_;
  std::vector<std::shared_ptr<Peer>> dying_;
  absl::flat_hash_map<ucp_ep_h, std::unique_ptr<Channel>> strangers_;  // connections without a hello
  std::vector<std::unique_ptr<Channel>> closing_;                      // connections that never had one
  std::vector<std::shared_ptr<Peer>> abandoned_;                       // left open by UCX, which may still name them
  std::vector<std::unique_ptr<Channel>> abandoned_channels_;           // the same
  std::unordered_set<void*> descriptors_;  // rendezvous offers neither accepted nor discarded
  int unanswered_ = 0;                     // connections that wait for their first message
  bool stopped_ = false;                   // nobody is connected to any more
  bool ending_ = false;                    // the thread is to end
  std::thread thread_;
};

}  // namespace runahead
