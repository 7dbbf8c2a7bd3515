// One TCP connection of the engine: its hello, its framing, and which transfers go over it.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/cluster_key.h"
#include "worker/link/message_engine.h"
#include "worker/link/tcp/tcp_stream.h"
#include "worker/link/tcp/tcp_wire.h"
#include "worker/link/transfer_in.h"
#include "worker/link/transfer_out.h"

namespace runahead {

// Used by the engine's thread only. What goes wrong on it is an error from Read or Write, after which it is to be
// failed and destroyed; nothing that the other end sends does more than that.
class TcpConnection final : public TransferWire {
 public:
  using Done = MessageEngine::Done;

  // A transfer that the other end offers.
  struct Offer {
    ~Offer() { *held -= bytes.size(); }
    uint64_t transfer = 0;
    uint64_t size = 0;
    bool eager = false;
    std::string bytes;  // eager: a copy, since what they were received into is used again
    uint64_t sum = 0;   // eager: of these
    absl::Time came;
    std::shared_ptr<std::atomic<size_t>> held;  // by all offers of the connection
  };

  // What a connection tells; called from within Read.
  class Listener {
   public:
    virtual ~Listener() = default;
    // The first thing on a connection: what the other end says of itself, which is not proved yet. Who was called
    // answers by SendHello. An error ends the connection.
    virtual absl::Status OnHello(TcpConnection& connection, const PeerId& from, const PeerKey& to) = 0;
    // The other end has the cluster's key, and what its hello said counts. An error ends the connection.
    virtual absl::Status OnProved(TcpConnection& connection, const PeerId& from) = 0;
    // `offer` is null where the kind is no transfer; else to be answered by Answer.
    virtual void OnMessage(TcpConnection& connection, MessageKind kind, std::string_view header,
                           const std::shared_ptr<const Offer>& offer) = 0;
    // There is something to write. Also called outside Read.
    virtual void OnQueued(TcpConnection& connection) = 0;
    // The connection is to be ended, but not now.
    virtual void OnBroken(TcpConnection& connection, const absl::Status& why) = 0;
  };

  // `id` is never used again in the process's life. `key` outlives the connection.
  TcpConnection(uint64_t id, std::unique_ptr<TcpStream> stream, const ClusterKey& key, Listener& listener, Later later);

  uint64_t id() const { return id_; }
  int fd() const { return stream_->fd(); }

  // As `self`, over the connection that `to` names. The first of the two ends is the caller. What is sent waits until
  // the other end has proved its hello.
  void SendHello(const PeerId& self, const PeerKey& to);
  // As MessageEngine::Send.
  void Send(MessageKind kind, const std::string& header, Outbound bytes, Done done);
  // As those of MessagePayload, for an offer.
  void Accept(const Offer& offer, Inbound into, ReceiveDone done);
  void Answer(uint64_t transfer, absl::StatusCode answer);

  // Takes in what has come, or a turn's share of it.
  absl::Status Read();
  // Writes what the socket takes, or a turn's share of it.
  absl::Status Write();
  bool wants_write() const { return stream_->unflushed() || (stream_->writable() && has_output()); }

  // Closes the socket and ends all that is under way with `why`, but for what is being copied between a device and its
  // staging: nothing touches a buffer when the events that are returned have fired.
  std::vector<Event> Fail(const absl::Status& why);

 private:
  static constexpr size_t kPieces = 64;  // of one call of the system

  struct Small {
    std::string bytes;
    Done done;  // may be empty
  };

  void Grant(uint64_t transfer, uint64_t bytes) override;
  void Again(uint64_t transfer) override;
  void Over(uint64_t transfer, int attempts, const absl::Status& status) override;
  void Ready(uint64_t transfer) override;
  void Moved(uint64_t transfer, uint64_t sum) override;
  void Gone(uint64_t transfer) override { outgoing_.erase(transfer); }
  void Break(const absl::Status& why) override { listener_.OnBroken(*this, why); }

  // Says `frame` of a transfer.
  void Say(TcpPrefix prefix);
  void Enqueue(Small small);
  // What goes out next, at most `limit` pieces; they stay where they are until Wrote.
  size_t Gather(iovec* pieces, size_t limit);
  bool has_output() const {
    return !greeting_.empty() || (proved_ && (chunk_of_ != nullptr || !small_.empty() || !streams_.empty()));
  }
  void BeginChunk();
  void Wrote(size_t bytes);
  void ChunkWrote(size_t bytes);
  // How many bytes came; 0 when there are none now. `from_socket`: as TcpStream's.
  absl::StatusOr<size_t> ReadOnce(bool from_socket);
  // Handles what the buffer holds.
  absl::Status Parse();
  // How many bytes at the front of the buffer were handled; 0 when it is not whole yet.
  absl::StatusOr<size_t> ParseHello();
  absl::StatusOr<size_t> ParseProof();
  absl::StatusOr<size_t> ParseFrame();
  absl::Status OnMessage(const TcpPrefix& prefix, std::string_view header, const char* bytes);
  // The other end says something of what goes out.
  absl::Status OnReply(const TcpPrefix& prefix);
  absl::Status OnChunk(const TcpPrefix& prefix);
  void Filled(size_t bytes);
  std::string_view unparsed() const { return {buffer_.data() + parsed_, filled_ - parsed_}; }

  const uint64_t id_;
  const std::unique_ptr<TcpStream> stream_;
  const ClusterKey& key_;
  Listener& listener_;
  const Later later_;

  // Hellos as they were on the wire; empty: not yet said, not yet heard.
  std::string own_hello_, their_hello_;
  bool called_ = false;  // from here
  PeerId from_;          // as their hello says
  bool proved_ = false;

  // Out. First what is left of hello and proof. Then one thing at a time is in the middle: the chunk, or the front of
  // small_.
  std::string greeting_;
  std::deque<Small> small_;
  size_t small_written_ = 0;                                              // of the front
  size_t queued_bytes_ = 0;                                               // of small_
  absl::flat_hash_map<uint64_t, std::shared_ptr<TransferOut>> outgoing_;  // not answered
  std::deque<std::shared_ptr<TransferOut>> streams_;                      // that have a chunk, in turn, each once
  std::shared_ptr<TransferOut> chunk_of_;                                 // of which a chunk is in the middle
  TcpPrefix chunk_prefix_;
  ConstBufferRef chunk_;
  size_t chunk_written_ = 0;
  bool chunk_next_ = false;  // small messages had their turn
  uint64_t next_transfer_ = 0;

  // In. buffer_ holds [parsed_, filled_).
  std::vector<char> buffer_;
  size_t parsed_ = 0, filled_ = 0;
  absl::flat_hash_map<uint64_t, int> offers_;  // not answered, and how often their bytes were tried
  absl::flat_hash_map<uint64_t, std::shared_ptr<TransferIn>> incoming_;
  std::shared_ptr<TransferIn> filling_;
  uint64_t chunk_missing_ = 0;
  uint64_t next_offer_ = 0;
  const std::shared_ptr<std::atomic<size_t>> held_ = std::make_shared<std::atomic<size_t>>(0);  // by offers
};

}  // namespace runahead
