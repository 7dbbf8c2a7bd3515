// Sending, and the end. tcp_connection_read.cc has what comes in.
#include "worker/link/tcp/tcp_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/random.h"
#include "worker/link/tcp/tcp_proof.h"

namespace runahead {
namespace {

// Small messages that wait for a peer that does not read, with what each costs beside its header. Far above what the
// jobs of a line leave waiting; a peer so far behind is as good as dead.
constexpr size_t kMaxQueued = size_t{64} << 20;
constexpr size_t kQueuedOverhead = 128;
// Then others of the engine have their turn.
constexpr size_t kWriteShare = size_t{8} << 20;

iovec Piece(const void* data, size_t size) {
  return {const_cast<void*>(data), size};  // sendmsg only reads it
}

}  // namespace

TcpConnection::TcpConnection(uint64_t id, Descriptor socket, const ClusterKey& key, Listener& listener)
    : id_(id), socket_(std::move(socket)), key_(key), listener_(listener), buffer_(kMaxTcpFrame) {}

void TcpConnection::SendHello(const PeerId& self, const PeerKey& to) {
  TcpHello hello;
  hello.address_bytes = static_cast<uint16_t>(self.address.size());
  hello.from = self.incarnation;
  hello.from_epoch = self.epoch;
  hello.to = to.incarnation;
  hello.to_epoch = to.epoch;
  hello.generation = to.generation;
  hello.nonce = {RandomBits64(), RandomBits64()};
  own_hello_ = TcpBytes(hello) + self.address;
  greeting_ += own_hello_;
  called_ = their_hello_.empty();
  if (!called_) greeting_ += TcpProof(key_, /*of_caller=*/false, their_hello_, own_hello_);
}

void TcpConnection::Send(MessageKind kind, const std::string& header, ConstBufferRef bytes, Done done) {
  RUNAHEAD_CHECK(header.size() <= kMaxHeader);
  TcpPrefix prefix;
  prefix.kind = static_cast<uint16_t>(kind);
  prefix.header_bytes = static_cast<uint32_t>(header.size());
  prefix.bytes = bytes.size;
  if (bytes.size <= kEagerBytes) {
    Enqueue({TcpBytes(TcpSealed(prefix, header)) + header, std::move(bytes), std::move(done)});
    return;
  }
  prefix.frame = TcpFrame::kOffer;
  prefix.transfer = next_transfer_++;
  auto outgoing = std::make_shared<Outgoing>();
  outgoing->transfer = prefix.transfer;
  outgoing->bytes = std::move(bytes);
  outgoing->done = std::move(done);
  offered_.emplace(prefix.transfer, std::move(outgoing));
  Enqueue({TcpBytes(TcpSealed(prefix, header)) + header, {}, nullptr});
}

void TcpConnection::Grant(uint64_t transfer, std::vector<BufferRef> into, ReceiveDone done) {
  const auto offer = offers_.find(transfer);
  if (offer == offers_.end()) return done(absl::InternalError("the bytes were accepted before"), {});
  auto incoming = std::make_shared<Incoming>();
  for (const BufferRef& piece : into) incoming->missing += piece.size;
  if (incoming->missing != offer->second) {
    Discard(transfer);
    return done(absl::InvalidArgumentError("the place for a message's bytes has another size than they"), {});
  }
  offers_.erase(offer);
  incoming->transfer = transfer;
  incoming->into = std::move(into);
  incoming->done = std::move(done);
  incoming_.emplace(transfer, std::move(incoming));
  TcpPrefix prefix;
  prefix.frame = TcpFrame::kGrant;
  prefix.transfer = transfer;
  Enqueue({TcpBytes(TcpSealed(prefix)), {}, nullptr});
}

void TcpConnection::Discard(uint64_t transfer) {
  if (offers_.erase(transfer) == 0) return;
  TcpPrefix prefix;
  prefix.frame = TcpFrame::kDiscard;
  prefix.transfer = transfer;
  Enqueue({TcpBytes(TcpSealed(prefix)), {}, nullptr});
}

void TcpConnection::Enqueue(Small small) {
  queued_bytes_ += small.head.size() + kQueuedOverhead;
  small_.push_back(std::move(small));
}

absl::Status TcpConnection::Write() {
  if (queued_bytes_ > kMaxQueued) return absl::ResourceExhaustedError("the peer does not read its messages");
  for (size_t written = 0; written < kWriteShare && wants_write();) {
    iovec pieces[kPieces];
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = Gather(pieces, kPieces);
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      written += static_cast<size_t>(sent);
      Wrote(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, "the peer is gone");
    }
  }
  return absl::OkStatus();
}

size_t TcpConnection::Gather(iovec* pieces, size_t limit) {
  if (!greeting_.empty()) {
    pieces[0] = Piece(greeting_.data(), greeting_.size());
    return 1;
  }
  const bool small_turn = !small_.empty() && !(chunk_next_ && !streams_.empty());
  if (chunk_ == nullptr && small_written_ == 0 && !small_turn) BeginChunk();
  size_t count = 0;
  if (chunk_ != nullptr) {
    const size_t data_written = chunk_written_ - std::min(chunk_written_, sizeof(chunk_prefix_));
    if (chunk_written_ < sizeof(chunk_prefix_)) {
      pieces[count++] =
          Piece(reinterpret_cast<const char*>(&chunk_prefix_) + chunk_written_, sizeof(chunk_prefix_) - chunk_written_);
    }
    pieces[count++] = Piece(chunk_->bytes.data() + chunk_->sent + data_written, chunk_prefix_.bytes - data_written);
    return count;
  }
  size_t skip = small_written_;
  for (const Small& small : small_) {
    if (count + 2 > limit) break;
    if (skip < small.head.size()) pieces[count++] = Piece(small.head.data() + skip, small.head.size() - skip);
    skip -= std::min(skip, small.head.size());
    if (skip < small.bytes.size) pieces[count++] = Piece(small.bytes.data() + skip, small.bytes.size - skip);
    skip = 0;
    if (!small_turn) break;  // only what was begun: it is a chunk's turn
  }
  return count;
}

void TcpConnection::BeginChunk() {
  chunk_ = std::move(streams_.front());
  streams_.pop_front();
  chunk_prefix_ = {};
  chunk_prefix_.frame = TcpFrame::kChunk;
  chunk_prefix_.transfer = chunk_->transfer;
  chunk_prefix_.bytes = std::min(kTcpChunk, chunk_->bytes.size - chunk_->sent);
  chunk_prefix_ = TcpSealed(chunk_prefix_);
  chunk_written_ = 0;
}

void TcpConnection::Wrote(size_t bytes) {
  if (!greeting_.empty()) {
    greeting_.erase(0, bytes);
    return;
  }
  if (chunk_ != nullptr) return ChunkWrote(bytes);
  chunk_next_ = true;
  small_written_ += bytes;
  while (!small_.empty() && small_written_ >= small_.front().size()) {
    const Small small = std::move(small_.front());
    small_.pop_front();
    small_written_ -= small.size();
    queued_bytes_ -= small.head.size() + kQueuedOverhead;
    if (small.done) small.done(absl::OkStatus());
  }
}

void TcpConnection::ChunkWrote(size_t bytes) {
  chunk_written_ += bytes;
  if (chunk_written_ < sizeof(chunk_prefix_) + chunk_prefix_.bytes) return;
  const std::shared_ptr<Outgoing> chunk = std::move(chunk_);
  chunk_ = nullptr;
  chunk_next_ = false;
  chunk->sent += chunk_prefix_.bytes;
  if (chunk->sent < chunk->bytes.size) {
    streams_.push_back(chunk);
    return;
  }
  chunk->bytes = {};
  chunk->done(absl::OkStatus());
}

void TcpConnection::Fail(const absl::Status& why) {
  shutdown(socket_.get(), SHUT_RDWR);  // also where a child of this process still has the descriptor
  socket_ = Descriptor();
  std::vector<Done> ended;
  for (Small& small : small_) ended.push_back(std::move(small.done));
  if (chunk_ != nullptr) ended.push_back(std::move(chunk_->done));
  for (const auto& stream : streams_) ended.push_back(std::move(stream->done));
  for (const auto& [transfer, outgoing] : offered_) ended.push_back(std::move(outgoing->done));
  for (const auto& [transfer, incoming] : incoming_) ended.push_back(Failing(std::move(incoming->done)));
  small_.clear();
  chunk_ = nullptr;
  streams_.clear();
  offered_.clear();
  incoming_.clear();
  filling_ = nullptr;
  for (const Done& done : ended) {
    if (done) done(absl::UnavailableError(why.message()));
  }
}

}  // namespace runahead
