// One TCP connection of the engine: its hello, its framing, and the transfers over it.
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
#include "worker/link/tcp/tcp_socket.h"
#include "worker/link/tcp/tcp_wire.h"

namespace runahead {

// Used by the engine's thread only. What goes wrong on it is an error from Read or Write, after which it is to be
// failed and destroyed; nothing that the other end sends does more than that.
class TcpConnection {
 public:
  using Done = MessageEngine::Done;

  // What a connection tells; called from within Read.
  class Listener {
   public:
    virtual ~Listener() = default;
    // The first thing on a connection: what the other end says of itself, which is not proved yet. Who was called
    // answers by SendHello. An error ends the connection.
    virtual absl::Status OnHello(TcpConnection& connection, const PeerId& from, const PeerKey& to) = 0;
    // The other end has the cluster's key, and what its hello said counts. An error ends the connection.
    virtual absl::Status OnProved(TcpConnection& connection, const PeerId& from) = 0;
    virtual void OnEager(TcpConnection& connection, MessageKind kind, std::string_view header,
                         std::shared_ptr<MessagePayload> payload) = 0;
    // To be answered by Grant or Discard.
    virtual void OnOffer(TcpConnection& connection, MessageKind kind, std::string_view header, uint64_t transfer,
                         uint64_t bytes) = 0;
  };

  // `id` is never used again in the process's life. `key` outlives the connection.
  TcpConnection(uint64_t id, Descriptor socket, const ClusterKey& key, Listener& listener);

  uint64_t id() const { return id_; }
  int fd() const { return socket_.get(); }

  // As `self`, over the connection that `to` names. The first of the two ends is the caller. What is sent waits until
  // the other end has proved its hello.
  void SendHello(const PeerId& self, const PeerKey& to);
  // As MessageEngine::Send.
  void Send(MessageKind kind, const std::string& header, ConstBufferRef bytes, Done done);
  // As MessagePayload::Accept, for an offer.
  void Grant(uint64_t transfer, std::vector<BufferRef> into, ReceiveDone done);
  void Discard(uint64_t transfer);

  // Takes in what has come, or a turn's share of it.
  absl::Status Read();
  // Writes what the socket takes, or a turn's share of it.
  absl::Status Write();
  bool wants_write() const {
    return !greeting_.empty() || (proved_ && (chunk_ != nullptr || !small_.empty() || !streams_.empty()));
  }

  // Closes the socket and ends all that is under way with `why`. Nothing touches a buffer afterwards.
  void Fail(const absl::Status& why);

 private:
  static constexpr size_t kPieces = 64;  // of one call of the system

  struct Small {
    std::string head;  // prefix and header
    ConstBufferRef bytes;
    Done done;  // may be empty
    size_t size() const { return head.size() + bytes.size; }
  };
  struct Outgoing {
    uint64_t transfer = 0;
    ConstBufferRef bytes;
    Done done;
    size_t sent = 0;
  };
  struct Incoming {
    uint64_t transfer = 0;
    std::vector<BufferRef> into;
    ReceiveDone done;
    absl::Time first = absl::InfiniteFuture();  // when its first chunk came
    size_t piece = 0;                           // where the next byte goes
    size_t offset = 0;                          // in it
    uint64_t missing = 0;
  };

  void Enqueue(Small small);
  // What goes out next, at most `limit` pieces; they stay where they are until Wrote.
  size_t Gather(iovec* pieces, size_t limit);
  void BeginChunk();
  void Wrote(size_t bytes);
  void ChunkWrote(size_t bytes);
  // Where the chunk's next bytes go, at most `limit` pieces of `bytes` together.
  size_t Places(iovec* pieces, size_t limit, size_t& bytes) const;
  // How many bytes came; 0 when there are none now.
  absl::StatusOr<size_t> ReadOnce();
  // Handles what the buffer holds.
  absl::Status Parse();
  // How many bytes at the front of the buffer were handled; 0 when it is not whole yet.
  absl::StatusOr<size_t> ParseHello();
  absl::StatusOr<size_t> ParseProof();
  absl::StatusOr<size_t> ParseFrame();
  absl::Status OnMessage(const TcpPrefix& prefix, std::string_view header, const char* bytes);
  absl::Status OnAnswer(const TcpPrefix& prefix);
  absl::Status OnChunk(const TcpPrefix& prefix);
  void Filled(size_t bytes);
  std::string_view unparsed() const { return {buffer_.data() + parsed_, filled_ - parsed_}; }

  const uint64_t id_;
  Descriptor socket_;
  const ClusterKey& key_;
  Listener& listener_;

  // Hellos as they were on the wire; empty: not yet said, not yet heard.
  std::string own_hello_, their_hello_;
  bool called_ = false;  // from here
  PeerId from_;          // as their hello says
  bool proved_ = false;

  // Out. First what is left of hello and proof. Then one thing at a time is in the middle: the chunk, or the front of
  // small_.
  std::string greeting_;
  std::deque<Small> small_;
  size_t small_written_ = 0;  // of the front
  size_t queued_bytes_ = 0;   // that small_ holds of our own memory
  absl::flat_hash_map<uint64_t, std::shared_ptr<Outgoing>> offered_;
  std::deque<std::shared_ptr<Outgoing>> streams_;  // granted, in turn
  std::shared_ptr<Outgoing> chunk_;
  TcpPrefix chunk_prefix_;
  size_t chunk_written_ = 0;
  bool chunk_next_ = false;  // small messages had their turn
  uint64_t next_transfer_ = 0;

  // In. buffer_ holds [parsed_, filled_).
  std::vector<char> buffer_;
  size_t parsed_ = 0, filled_ = 0;
  absl::flat_hash_map<uint64_t, uint64_t> offers_;  // neither granted nor discarded, their bytes
  absl::flat_hash_map<uint64_t, std::shared_ptr<Incoming>> incoming_;
  std::shared_ptr<Incoming> filling_;
  uint64_t chunk_missing_ = 0;
  uint64_t next_offer_ = 0;
  const std::shared_ptr<std::atomic<size_t>> held_ = std::make_shared<std::atomic<size_t>>(0);  // by eager payloads
};

}  // namespace runahead
