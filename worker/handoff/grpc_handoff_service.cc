#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "worker/handoff/grpc_handoff.h"

namespace runahead {
namespace {

// Nothing for a kind or form that this version does not know.
std::optional<SliceHeader> FromProto(const v1::SliceHeader& proto) {
  const std::optional<RowForm> form = ParseRowForm(proto.dtype());
  if (!form.has_value()) return std::nullopt;
  if (proto.kind() != v1::SLICE_KIND_KV && proto.kind() != v1::SLICE_KIND_X) return std::nullopt;
  SliceHeader header;
  header.slice = {{proto.lease().incarnation(), proto.lease().number(), proto.lease().epoch()},
                  proto.layer(),
                  proto.begin(),
                  proto.end(),
                  proto.kind() == v1::SLICE_KIND_KV ? SliceKind::kKv : SliceKind::kX,
                  *form};
  header.attempt = static_cast<int>(proto.attempt());
  header.bytes = proto.bytes();
  header.xxh64 = proto.xxh64();
  return header;
}

v1::SliceVerdict ToProto(SliceVerdict verdict) {
  switch (verdict) {
    case SliceVerdict::kAccepted:
      return v1::SLICE_VERDICT_ACCEPTED;
    case SliceVerdict::kCorrupt:
      return v1::SLICE_VERDICT_CORRUPT;
    case SliceVerdict::kNoLease:
      return v1::SLICE_VERDICT_NO_LEASE;
    case SliceVerdict::kBadForm:
      return v1::SLICE_VERDICT_BAD_FORM;
    case SliceVerdict::kBadRange:
      break;
  }
  return v1::SLICE_VERDICT_BAD_RANGE;
}

// One stream. Exactly one thing is under way at a time (a read, a wait for the store, a hash, the store's own copy, a
// write), so its fields need no lock, and it lives until that thing led to Finish.
class Reactor final : public grpc::ServerBidiReactor<v1::HandoffRequest, v1::HandoffReply> {
 public:
  Reactor(SliceReceiver& receiver, TaskThread& hashing) : receiver_(receiver), hashing_(hashing) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);  // the sender is done, or gone
    if (request_.has_header() == in_slice_ || request_.part_case() == v1::HandoffRequest::PART_NOT_SET) {
      return End({grpc::StatusCode::INVALID_ARGUMENT, in_slice_ ? "a chunk was expected" : "a header was expected"});
    }
    in_slice_ ? TakeChunk() : TakeHeader();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  void TakeHeader() {
    in_slice_ = true;
    write_ = nullptr;
    received_ = 0;
    const std::optional<SliceHeader> header = FromProto(request_.header());
    header_ = header.value_or(SliceHeader{});
    header_.bytes = request_.header().bytes();
    if (!header.has_value()) return Begun(receiver_.Told(SliceVerdict::kBadRange));
    receiver_.Begin(header_, [this](const SliceReceiver::Outcome& outcome) { Begun(outcome); });
  }

  void Begun(const SliceReceiver::Outcome& outcome) {
    if (const auto* verdict = std::get_if<SliceVerdict>(&outcome)) {
      verdict_ = *verdict;
    } else {
      write_ = std::get<SliceReceiver::Write>(outcome);
    }
    Continue();
  }

  void TakeChunk() {
    const std::string& chunk = request_.chunk();
    if (chunk.size() > header_.bytes - received_) {
      return End({grpc::StatusCode::INVALID_ARGUMENT, "the chunks are longer than the header says"});
    }
    if (write_ != nullptr) Store(chunk);
    received_ += chunk.size();
    Continue();
  }

  // Copies the chunk to where the slice's bytes from received_ on go.
  void Store(const std::string& chunk) {
    uint64_t place = 0;  // of the piece in the slice
    for (const BufferRef& piece : write_->destination()) {
      const uint64_t from = std::max(place, received_);
      const uint64_t to = std::min(place + piece.size, received_ + chunk.size());
      if (from < to) std::memcpy(piece.data() + (from - place), chunk.data() + (from - received_), to - from);
      place += piece.size;
    }
  }

  void Continue() {
    if (received_ < header_.bytes) return StartRead(&request_);
    in_slice_ = false;
    if (write_ == nullptr) return Answer(verdict_);
    hashing_.Post([this] {
      const SliceReceiver::Write write = std::exchange(write_, nullptr);
      receiver_.Finish(header_, write, [this](SliceVerdict verdict) { Answer(verdict); });
    });
  }

  void Answer(SliceVerdict verdict) {
    reply_.set_verdict(ToProto(verdict));
    if (receiver_.faults() == nullptr) return StartWrite(&reply_);
    receiver_.faults()->Answer([this] { StartWrite(&reply_); });
  }

  void End(const grpc::Status& status) {
    if (write_ != nullptr) receiver_.Abandon(std::exchange(write_, nullptr));
    Finish(status);
  }

  SliceReceiver& receiver_;
  TaskThread& hashing_;
  v1::HandoffRequest request_;
  v1::HandoffReply reply_;
  bool in_slice_ = false;  // a header is in, not all of its bytes
  SliceHeader header_;
  SliceReceiver::Write write_;  // null: refused, the bytes are skipped
  SliceVerdict verdict_ = SliceVerdict::kBadRange;
  uint64_t received_ = 0;
};

}  // namespace

grpc::ServerBidiReactor<v1::HandoffRequest, v1::HandoffReply>* GrpcHandoffService::Push(grpc::CallbackServerContext*) {
  return new Reactor(receiver_, hashing_);
}

}  // namespace runahead
