// Sending, transfers, and the end. tcp_connection_read.cc has what comes in.
#include "worker/link/tcp/tcp_connection.h"

#include <algorithm>
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
  return {const_cast<void*>(data), size};  // it is only read
}

}  // namespace

TcpConnection::TcpConnection(uint64_t id, std::unique_ptr<TcpStream> stream, const ClusterKey& key, Listener& listener,
                             Later later)
    : id_(id),
      stream_(std::move(stream)),
      key_(key),
      listener_(listener),
      later_(std::move(later)),
      buffer_(kMaxTcpFrame) {}

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

void TcpConnection::Send(MessageKind kind, const std::string& header, Outbound bytes, Done done) {
  RUNAHEAD_CHECK(header.size() <= kMaxHeader);
  TcpPrefix prefix;
  prefix.kind = static_cast<uint16_t>(kind);
  prefix.header_bytes = static_cast<uint32_t>(header.size());
  if (!IsTransfer(kind)) {
    RUNAHEAD_CHECK(bytes.bytes.size == 0);
    return Enqueue({TcpBytes(TcpSealed(prefix, header)) + header, std::move(done)});
  }
  prefix.transfer = next_transfer_++;
  prefix.bytes = bytes.bytes.size;
  auto transfer = std::make_shared<TransferOut>(prefix.transfer, std::move(bytes), std::move(done), *this, later_);
  outgoing_.emplace(prefix.transfer, transfer);
  if (transfer->staged() || transfer->moved() || transfer->size() > kEagerBytes) {
    prefix.frame = TcpFrame::kOffer;
    return Enqueue({TcpBytes(TcpSealed(prefix, header)) + header, nullptr});
  }
  const ConstBufferRef all = transfer->All();
  prefix.sum = transfer->sum();
  Small small{TcpBytes(TcpSealed(prefix, header)) + header, nullptr};
  if (all.size > 0) small.bytes.append(reinterpret_cast<const char*>(all.data()), all.size);
  Enqueue(std::move(small));
}

void TcpConnection::Accept(const Offer& offer, Inbound into, ReceiveDone done) {
  const auto tried = offers_.find(offer.transfer);
  if (tried == offers_.end() || incoming_.contains(offer.transfer)) {
    return done(absl::InternalError("the bytes were answered or accepted before"), {});
  }
  uint64_t places = 0;
  for (const BufferRef& piece : into.into) places += piece.size;
  if (places != offer.size) {
    return done(absl::InvalidArgumentError("the place for a transfer's bytes has another size than they"), {});
  }
  if (tried->second >= kTransferAttempts) {
    Answer(offer.transfer, absl::StatusCode::kDataLoss);
    return done(absl::DataLossError("the bytes were sent often enough"), {});
  }
  const bool again = tried->second++ > 0;
  const bool on_host = into.lane == nullptr && into.mover == nullptr;
  const auto transfer = std::make_shared<TransferIn>(offer.transfer, offer.size, tried->second, std::move(into),
                                                     std::move(done), *this, later_);
  incoming_.emplace(offer.transfer, transfer);
  if (offer.size == 0 || (offer.eager && on_host && !again)) return transfer->Take(offer.bytes, offer.sum, offer.came);
  if (again) Again(offer.transfer);
  transfer->Start();
}

void TcpConnection::Say(TcpPrefix prefix) {
  Enqueue({TcpBytes(TcpSealed(prefix)), nullptr});
}

void TcpConnection::Answer(uint64_t transfer, absl::StatusCode answer) {
  if (offers_.erase(transfer) == 0) return;
  TcpPrefix prefix;
  prefix.frame = TcpFrame::kAnswer;
  prefix.answer = static_cast<uint8_t>(answer);
  prefix.transfer = transfer;
  Say(prefix);
}

void TcpConnection::Grant(uint64_t transfer, uint64_t bytes) {
  TcpPrefix prefix;
  prefix.frame = TcpFrame::kGrant;
  prefix.bytes = bytes;
  prefix.transfer = transfer;
  Say(prefix);
}

void TcpConnection::Again(uint64_t transfer) {
  TcpPrefix prefix;
  prefix.frame = TcpFrame::kAgain;
  prefix.transfer = transfer;
  Say(prefix);
}

void TcpConnection::Over(uint64_t transfer, int attempts, const absl::Status& status) {
  incoming_.erase(transfer);
  offers_[transfer] = attempts;
  if (absl::IsDataLoss(status)) Answer(transfer, absl::StatusCode::kDataLoss);
}

void TcpConnection::Ready(uint64_t transfer) {
  const std::shared_ptr<TransferOut>& ready = outgoing_.at(transfer);
  if (ready == chunk_of_ || std::find(streams_.begin(), streams_.end(), ready) != streams_.end()) return;
  streams_.push_back(ready);
  listener_.OnQueued(*this);
}

void TcpConnection::Moved(uint64_t transfer, uint64_t sum) {
  TcpPrefix prefix;
  prefix.frame = TcpFrame::kMoved;
  prefix.transfer = transfer;
  prefix.sum = sum;
  Say(prefix);
}

void TcpConnection::Enqueue(Small small) {
  queued_bytes_ += small.bytes.size() + kQueuedOverhead;
  small_.push_back(std::move(small));
  listener_.OnQueued(*this);
}

absl::Status TcpConnection::Write() {
  if (queued_bytes_ > kMaxQueued) return absl::ResourceExhaustedError("the peer does not read its messages");
  RUNAHEAD_RETURN_IF_ERROR(stream_->Flush());
  for (size_t written = 0; written < kWriteShare && !stream_->unflushed() && has_output();) {
    iovec pieces[kPieces];
    RUNAHEAD_ASSIGN_OR_RETURN(const size_t taken, stream_->Write(pieces, Gather(pieces, kPieces)));
    if (taken == 0) break;
    written += taken;
    Wrote(taken);
    RUNAHEAD_RETURN_IF_ERROR(stream_->Flush());
  }
  return absl::OkStatus();
}

size_t TcpConnection::Gather(iovec* pieces, size_t limit) {
  if (!greeting_.empty()) {
    pieces[0] = Piece(greeting_.data(), greeting_.size());
    return 1;
  }
  const bool small_turn = !small_.empty() && !(chunk_next_ && !streams_.empty());
  if (chunk_of_ == nullptr && small_written_ == 0 && !small_turn) BeginChunk();
  size_t count = 0;
  if (chunk_of_ != nullptr) {
    const size_t data_written = chunk_written_ - std::min(chunk_written_, sizeof(chunk_prefix_));
    if (chunk_written_ < sizeof(chunk_prefix_)) {
      pieces[count++] =
          Piece(reinterpret_cast<const char*>(&chunk_prefix_) + chunk_written_, sizeof(chunk_prefix_) - chunk_written_);
    }
    pieces[count++] = Piece(chunk_.data() + data_written, chunk_.size - data_written);
    return count;
  }
  size_t skip = small_written_;
  for (const Small& small : small_) {
    if (count == limit) break;
    pieces[count++] = Piece(small.bytes.data() + skip, small.bytes.size() - skip);
    skip = 0;
    if (!small_turn) break;  // only what was begun: it is a chunk's turn
  }
  return count;
}

void TcpConnection::BeginChunk() {
  chunk_of_ = std::move(streams_.front());
  streams_.pop_front();
  chunk_ = chunk_of_->Next(kTcpChunk);
  chunk_prefix_ = {};
  chunk_prefix_.frame = TcpFrame::kChunk;
  chunk_prefix_.transfer = chunk_of_->number();
  chunk_prefix_.bytes = chunk_.size;
  if (chunk_of_->whole()) chunk_prefix_.sum = chunk_of_->sum();
  chunk_prefix_ = TcpSealed(chunk_prefix_);
  chunk_written_ = 0;
}

void TcpConnection::Wrote(size_t bytes) {
  if (!greeting_.empty()) {
    greeting_.erase(0, bytes);
    return;
  }
  if (chunk_of_ != nullptr) return ChunkWrote(bytes);
  chunk_next_ = true;
  small_written_ += bytes;
  while (!small_.empty() && small_written_ >= small_.front().bytes.size()) {
    const Small small = std::move(small_.front());
    small_.pop_front();
    small_written_ -= small.bytes.size();
    queued_bytes_ -= small.bytes.size() + kQueuedOverhead;
    if (small.done) small.done(absl::OkStatus());
  }
}

void TcpConnection::ChunkWrote(size_t bytes) {
  chunk_written_ += bytes;
  if (chunk_written_ < sizeof(chunk_prefix_) + chunk_.size) return;
  const std::shared_ptr<TransferOut> of = std::move(chunk_of_);
  chunk_of_ = nullptr;
  chunk_ = {};
  chunk_next_ = false;
  if (of->ready()) streams_.push_back(of);
}

std::vector<Event> TcpConnection::Fail(const absl::Status& why) {
  stream_->Close();
  chunk_ = {};
  chunk_of_ = nullptr;
  streams_.clear();
  filling_ = nullptr;
  std::vector<Event> ends;
  for (const Small& small : std::exchange(small_, {})) {
    if (small.done) small.done(absl::UnavailableError(why.message()));
  }
  for (const auto& [number, transfer] : std::exchange(outgoing_, {})) ends.push_back(transfer->Fail(why));
  for (const auto& [number, transfer] : std::exchange(incoming_, {})) ends.push_back(transfer->Fail(why));
  offers_.clear();
  return ends;
}

}  // namespace runahead
