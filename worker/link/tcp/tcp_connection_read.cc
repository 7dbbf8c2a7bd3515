// What comes in over a TCP connection. All of it is doubted: lengths are checked before anything is allocated or
// skipped, and whatever does not fit ends this connection.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "worker/link/eager_payload.h"
#include "worker/link/tcp/tcp_connection.h"
#include "worker/link/tcp/tcp_proof.h"

namespace runahead {
namespace {

// Then others of the engine have their turn.
constexpr size_t kReadShare = size_t{8} << 20;
// Offers that nobody has accepted or discarded, and eager bytes that nobody has taken (with what each costs beside).
// Far above what the jobs of a line leave waiting for their receives.
constexpr size_t kMaxOffers = 65536;
constexpr size_t kMaxHeld = size_t{256} << 20;
constexpr size_t kHeldOverhead = 256;

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the peer speaks no link of this version: ", std::string(what)));
}

absl::Status Damaged() {
  return absl::DataLossError("what the peer sent came damaged: the network between the two flips bits");
}

// Counts what it holds, until nobody wants it any more.
class HeldPayload final : public EagerPayload {
 public:
  HeldPayload(const char* bytes, size_t size, std::shared_ptr<std::atomic<size_t>> held)
      : EagerPayload(bytes, size), held_(std::move(held)) {
    *held_ += size + kHeldOverhead;
  }
  ~HeldPayload() override { *held_ -= size() + kHeldOverhead; }

 private:
  const std::shared_ptr<std::atomic<size_t>> held_;
};

}  // namespace

absl::Status TcpConnection::Read() {
  for (size_t total = 0; total < kReadShare;) {
    RUNAHEAD_ASSIGN_OR_RETURN(const size_t bytes, ReadOnce());
    if (bytes == 0) break;
    total += bytes;
    RUNAHEAD_RETURN_IF_ERROR(Parse());
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> TcpConnection::ReadOnce() {
  iovec pieces[kPieces];
  size_t count = 0, places = 0;
  if (parsed_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + parsed_, filled_ - parsed_);
    filled_ -= std::exchange(parsed_, 0);
  }
  size_t room = buffer_.size() - filled_;
  if (chunk_missing_ > 0) {
    count = Places(pieces, kPieces - 1, places);
    // After the chunk only the next prefix, so that the bytes of the next chunk go straight to their place too.
    room = places == chunk_missing_ ? sizeof(TcpPrefix) : 0;
  }
  if (room > 0) pieces[count++] = {buffer_.data() + filled_, room};
  for (;;) {
    const ssize_t got = readv(socket_.get(), pieces, static_cast<int>(count));
    if (got > 0) {
      const size_t placed = std::min(static_cast<size_t>(got), places);
      filled_ += static_cast<size_t>(got) - placed;
      if (placed > 0) Filled(placed);
      return static_cast<size_t>(got);
    }
    if (got == 0) return absl::UnavailableError("the peer closed the connection");
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) return ErrnoStatus(errno, "the peer is gone");
  }
}

size_t TcpConnection::Places(iovec* pieces, size_t limit, size_t& bytes) const {
  size_t count = 0;
  bytes = 0;
  size_t offset = filling_->offset;
  for (size_t piece = filling_->piece; bytes < chunk_missing_ && count < limit; ++piece) {
    const BufferRef& into = filling_->into[piece];
    const size_t size = std::min<size_t>(into.size - offset, chunk_missing_ - bytes);
    if (size > 0) pieces[count++] = {into.data() + offset, size};
    bytes += size;
    offset = 0;
  }
  return count;
}

void TcpConnection::Filled(size_t bytes) {
  const std::shared_ptr<Incoming> filling = filling_;
  chunk_missing_ -= bytes;
  filling->missing -= bytes;
  filling->offset += bytes;
  while (filling->piece < filling->into.size() && filling->offset >= filling->into[filling->piece].size) {
    filling->offset -= filling->into[filling->piece].size;
    ++filling->piece;
  }
  if (chunk_missing_ == 0) filling_ = nullptr;
  if (filling->missing > 0) return;
  incoming_.erase(filling->transfer);
  filling->into.clear();
  filling->done(absl::OkStatus(), {filling->first, MonotonicNow()});
}

absl::Status TcpConnection::Parse() {
  for (;;) {
    if (chunk_missing_ > 0) {
      if (unparsed().empty()) return absl::OkStatus();
      iovec piece;
      size_t size = 0;
      Places(&piece, 1, size);
      size = std::min(size, unparsed().size());
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
    if (prefix.frame == TcpFrame::kChunk) {
      RUNAHEAD_RETURN_IF_ERROR(OnChunk(prefix));
    } else {
      RUNAHEAD_RETURN_IF_ERROR(OnAnswer(prefix));
    }
    return sizeof(prefix);
  }
  if (prefix.kind <= static_cast<uint16_t>(MessageKind::kGoodbye) || prefix.kind >= kMessageKinds) {
    return Malformed("a message of no kind");
  }
  const bool eager = prefix.frame == TcpFrame::kMessage;
  if (prefix.header_bytes > kMaxHeader || (prefix.bytes <= kEagerBytes) != eager) {
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
  if (prefix.frame == TcpFrame::kMessage) {
    if (*held_ > kMaxHeld) return absl::ResourceExhaustedError("the peer floods this process with messages");
    listener_.OnEager(*this, kind, header, std::make_shared<HeldPayload>(bytes, prefix.bytes, held_));
    return absl::OkStatus();
  }
  if (prefix.transfer != next_offer_) return Malformed("an offer out of order");
  if (offers_.size() >= kMaxOffers) return absl::ResourceExhaustedError("the peer floods this process with offers");
  ++next_offer_;
  offers_.emplace(prefix.transfer, prefix.bytes);
  listener_.OnOffer(*this, kind, header, prefix.transfer, prefix.bytes);
  return absl::OkStatus();
}

absl::Status TcpConnection::OnAnswer(const TcpPrefix& prefix) {
  if (prefix.frame != TcpFrame::kGrant && prefix.frame != TcpFrame::kDiscard) return Malformed("a frame of no kind");
  const auto found = offered_.find(prefix.transfer);
  if (found == offered_.end()) return Malformed("an answer to no offer");
  const std::shared_ptr<Outgoing> outgoing = std::move(found->second);
  offered_.erase(found);
  if (prefix.frame == TcpFrame::kGrant) {
    streams_.push_back(outgoing);
    return absl::OkStatus();
  }
  outgoing->bytes = {};
  outgoing->done(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status TcpConnection::OnChunk(const TcpPrefix& prefix) {
  const auto found = incoming_.find(prefix.transfer);
  if (found == incoming_.end()) return Malformed("bytes that were not asked for");
  if (prefix.bytes == 0 || prefix.bytes > found->second->missing) return Malformed("more bytes than were announced");
  filling_ = found->second;
  filling_->first = std::min(filling_->first, MonotonicNow());
  chunk_missing_ = prefix.bytes;
  return absl::OkStatus();
}

}  // namespace runahead
