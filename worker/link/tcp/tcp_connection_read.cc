// What comes in over a TCP connection. All of it is doubted: lengths are checked before anything is allocated or
// skipped, and whatever does not fit ends this connection.
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "worker/link/tcp/tcp_connection.h"
#include "worker/link/tcp/tcp_proof.h"

namespace runahead {
namespace {

// Then others of the engine have their turn.
constexpr size_t kReadShare = size_t{8} << 20;
// Offers that nobody has answered, and eager bytes that somebody keeps. Far above what the jobs of a line leave waiting
// for their receives.
constexpr size_t kMaxOffers = 65536;
constexpr size_t kMaxHeld = size_t{256} << 20;
// More than any memory has; so that sums of sizes do not overflow.
constexpr uint64_t kMostBytes = uint64_t{1} << 48;

// What a connection of TLS begins with: a record of the handshake.
constexpr char kTlsHandshake[] = "\x16\x03";

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the peer speaks no link of this version: ", std::string(what)));
}

absl::Status Damaged() {
  return absl::DataLossError("what the peer sent came damaged: the network between the two flips bits");
}

}  // namespace

absl::Status TcpConnection::Read() {
  // What the stream has taken from the socket is read in any case: nobody tells of that again.
  for (size_t total = 0; total < kReadShare || stream_->buffered();) {
    RUNAHEAD_ASSIGN_OR_RETURN(const size_t bytes, ReadOnce(/*from_socket=*/total < kReadShare));
    if (bytes == 0) break;
    total += bytes;
    RUNAHEAD_RETURN_IF_ERROR(Parse());
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> TcpConnection::ReadOnce(bool from_socket) {
  iovec pieces[kPieces];
  size_t count = 0, places = 0;
  if (parsed_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + parsed_, filled_ - parsed_);
    filled_ -= std::exchange(parsed_, 0);
  }
  size_t room = buffer_.size() - filled_;
  if (chunk_missing_ > 0) {
    count = filling_->Places(pieces, kPieces - 1, chunk_missing_, places);
    // After the chunk only the next prefix, so that the bytes of the next chunk go straight to their place too.
    room = places == chunk_missing_ ? sizeof(TcpPrefix) : 0;
  }
  if (room > 0) pieces[count++] = {buffer_.data() + filled_, room};
  RUNAHEAD_ASSIGN_OR_RETURN(const size_t got, stream_->Read(pieces, count, from_socket));
  const size_t placed = std::min(got, places);
  filled_ += got - placed;
  if (placed > 0) Filled(placed);
  return got;
}

void TcpConnection::Filled(size_t bytes) {
  const std::shared_ptr<TransferIn> filling = filling_;
  chunk_missing_ -= bytes;
  if (chunk_missing_ == 0) filling_ = nullptr;
  filling->Filled(bytes);
}

absl::Status TcpConnection::Parse() {
  for (;;) {
    if (chunk_missing_ > 0) {
      if (unparsed().empty()) return absl::OkStatus();
      iovec piece;
      size_t size = 0;
      filling_->Places(&piece, 1, std::min<uint64_t>(chunk_missing_, unparsed().size()), size);
      std::memcpy(piece.iov_base, unparsed().data(), size);
      parsed_ += size;
      Filled(size);
      continue;
    }
    RUNAHEAD_ASSIGN_OR_RETURN(const size_t handled, proved_                ? ParseFrame()
                                                    : their_hello_.empty() ? ParseHello()
                                                                           : ParseProof());
    if (handled == 0) return absl::OkStatus();
    parsed_ += handled;
  }
}

absl::StatusOr<size_t> TcpConnection::ParseHello() {
  if (absl::StartsWith({unparsed().data(), unparsed().size()}, kTlsHandshake)) {
    return absl::UnauthenticatedError(
        "the peer speaks TLS, and this worker does not: give all workers and the router cluster_tls_cert");
  }
  if (unparsed().size() < sizeof(TcpHello)) return 0;
  const auto hello = TcpRead<TcpHello>(unparsed().data());
  if (hello.magic != TcpHello::kMagic || hello.version != TcpHello::kVersion) return Malformed("its hello is another");
  if (hello.address_bytes == 0 || hello.address_bytes > TcpHello::kMaxAddress) return Malformed("its address is none");
  const size_t whole = sizeof(hello) + hello.address_bytes;
  if (unparsed().size() < whole) return 0;
  their_hello_ = unparsed().substr(0, whole);
  from_ = {their_hello_.substr(sizeof(hello)), hello.from, {}, hello.from_epoch, hello.generation};
  RUNAHEAD_RETURN_IF_ERROR(listener_.OnHello(*this, from_, {hello.to, hello.to_epoch, hello.generation}));
  return whole;
}

absl::StatusOr<size_t> TcpConnection::ParseProof() {
  if (unparsed().size() < kTcpProofBytes) return 0;
  const std::string& callers = called_ ? own_hello_ : their_hello_;
  const std::string& answerers = called_ ? their_hello_ : own_hello_;
  const std::string_view theirs = unparsed().substr(0, kTcpProofBytes);
  if (!SameProof({theirs.data(), theirs.size()}, TcpProof(key_, /*of_caller=*/!called_, callers, answerers))) {
    return absl::UnauthenticatedError(
        "the peer does not have this worker's cluster key: give all workers the same cluster_key");
  }
  proved_ = true;
  RUNAHEAD_RETURN_IF_ERROR(listener_.OnProved(*this, from_));
  if (called_) greeting_ += TcpProof(key_, /*of_caller=*/true, callers, answerers);
  return kTcpProofBytes;
}

absl::StatusOr<size_t> TcpConnection::ParseFrame() {
  if (unparsed().size() < sizeof(TcpPrefix)) return 0;
  const auto prefix = TcpRead<TcpPrefix>(unparsed().data());
  if (!TcpIsWhole(prefix)) return Damaged();
  if (prefix.frame != TcpFrame::kMessage && prefix.frame != TcpFrame::kOffer) {
    const bool bytes_come = prefix.frame == TcpFrame::kChunk || prefix.frame == TcpFrame::kMoved;
    RUNAHEAD_RETURN_IF_ERROR(bytes_come ? OnChunk(prefix) : OnReply(prefix));
    return sizeof(prefix);
  }
  if (prefix.kind < static_cast<uint16_t>(kFirstMessageKind) || prefix.kind >= kMessageKinds) {
    return Malformed("a message of no kind");
  }
  const bool eager = prefix.frame == TcpFrame::kMessage;
  const uint64_t most = !eager ? kMostBytes : IsTransfer(static_cast<MessageKind>(prefix.kind)) ? kEagerBytes : 0;
  if (prefix.header_bytes > kMaxHeader || prefix.bytes > most || (!eager && prefix.bytes == 0)) {
    return Malformed("a message of no possible size");
  }
  const size_t whole = sizeof(prefix) + prefix.header_bytes + (eager ? prefix.bytes : 0);
  if (unparsed().size() < whole) return 0;
  const std::string_view header = unparsed().substr(sizeof(prefix), prefix.header_bytes);
  if (TcpHash(header.data(), header.size()) != prefix.header_hash) return Damaged();
  RUNAHEAD_RETURN_IF_ERROR(OnMessage(prefix, header, header.data() + header.size()));
  return whole;
}

absl::Status TcpConnection::OnMessage(const TcpPrefix& prefix, std::string_view header, const char* bytes) {
  const auto kind = static_cast<MessageKind>(prefix.kind);
  if (!IsTransfer(kind)) {
    if (prefix.frame == TcpFrame::kOffer) return Malformed("an offer of no bytes");
    listener_.OnMessage(*this, kind, header, nullptr);
    return absl::OkStatus();
  }
  if (prefix.transfer != next_offer_) return Malformed("an offer out of order");
  if (offers_.size() >= kMaxOffers) return absl::ResourceExhaustedError("the peer floods this process with offers");
  if (*held_ > kMaxHeld) return absl::ResourceExhaustedError("the peer floods this process with messages");
  ++next_offer_;
  offers_.emplace(prefix.transfer, 0);
  const auto offer = std::make_shared<Offer>();
  offer->transfer = prefix.transfer;
  offer->size = prefix.bytes;
  offer->eager = prefix.frame == TcpFrame::kMessage;
  offer->sum = prefix.sum;
  offer->came = MonotonicNow();
  if (offer->eager) offer->bytes.assign(bytes, prefix.bytes);
  *held_ += offer->bytes.size();
  offer->held = held_;
  listener_.OnMessage(*this, kind, header, offer);
  return absl::OkStatus();
}

absl::Status TcpConnection::OnReply(const TcpPrefix& prefix) {
  const auto found = outgoing_.find(prefix.transfer);
  if (found == outgoing_.end()) return Malformed("an answer to no offer");
  const std::shared_ptr<TransferOut> transfer = found->second;
  if (transfer == chunk_of_ && prefix.frame != TcpFrame::kGrant) return Malformed("an answer to half a chunk");
  switch (prefix.frame) {
    case TcpFrame::kGrant:
      RUNAHEAD_RETURN_IF_ERROR(transfer->Granted(prefix.bytes));
      if (transfer->ready()) Ready(prefix.transfer);
      return absl::OkStatus();
    case TcpFrame::kAgain:
      return transfer->Again();
    case TcpFrame::kAnswer:
      return transfer->Answered(static_cast<absl::StatusCode>(prefix.answer));
    case TcpFrame::kMessage:
    case TcpFrame::kOffer:
    case TcpFrame::kChunk:
    case TcpFrame::kMoved:
      break;
  }
  return Malformed("a frame of no kind");
}

absl::Status TcpConnection::OnChunk(const TcpPrefix& prefix) {
  const auto found = incoming_.find(prefix.transfer);
  if (found == incoming_.end()) return Malformed("bytes that were not asked for");
  if (prefix.frame == TcpFrame::kMoved) return std::shared_ptr<TransferIn>(found->second)->Moved(prefix.sum);
  if (prefix.bytes == 0 || prefix.bytes > found->second->room()) return Malformed("more bytes than were granted");
  filling_ = found->second;
  filling_->BeginChunk(prefix.bytes, prefix.sum);
  chunk_missing_ = prefix.bytes;
  return absl::OkStatus();
}

}  // namespace runahead
