#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "worker/handoff/grpc_handoff.h"

namespace runahead {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;  // kv.proto's limit

v1::SliceHeader ToProto(const SliceHeader& header) {
  v1::SliceHeader proto;
  const Slice& slice = header.slice;
  proto.mutable_lease()->set_incarnation(slice.lease.incarnation);
  proto.mutable_lease()->set_epoch(slice.lease.epoch);
  proto.mutable_lease()->set_number(slice.lease.number);
  proto.set_attempt(static_cast<uint32_t>(header.attempt));
  proto.set_layer(slice.layer);
  // What does not fit the field fits no prompt either, and must stay so.
  const auto narrow = [](int64_t token) {
    return static_cast<int32_t>(std::clamp<int64_t>(token, INT32_MIN, INT32_MAX));
  };
  proto.set_begin(narrow(slice.begin));
  proto.set_end(narrow(slice.end));
  proto.set_kind(slice.kind == SliceKind::kKv ? v1::SLICE_KIND_KV : v1::SLICE_KIND_X);
  proto.set_dtype(std::string(RowFormName(slice.form)));
  proto.set_bytes(header.bytes);
  proto.set_xxh64(header.xxh64);
  return proto;
}

absl::StatusOr<SliceVerdict> FromProto(v1::SliceVerdict verdict) {
  switch (verdict) {
    case v1::SLICE_VERDICT_ACCEPTED:
      return SliceVerdict::kAccepted;
    case v1::SLICE_VERDICT_CORRUPT:
      return SliceVerdict::kCorrupt;
    case v1::SLICE_VERDICT_NO_LEASE:
      return SliceVerdict::kNoLease;
    case v1::SLICE_VERDICT_BAD_RANGE:
      return SliceVerdict::kBadRange;
    case v1::SLICE_VERDICT_BAD_FORM:
      return SliceVerdict::kBadForm;
    default:
      return absl::UnavailableError(absl::StrCat("the decode worker answered with an unknown verdict ", verdict));
  }
}

struct Item {
  SliceHeader header;
  ConstBufferRef bytes;
  SliceTransport::Done done;
};

// One stream to one decode worker: one slice at a time, one write in flight, one read always posted (so that a break is
// seen while idle). Holds itself until gRPC is done with it.
class PushStream final : public grpc::ClientBidiReactor<v1::HandoffRequest, v1::HandoffReply> {
 public:
  static std::shared_ptr<PushStream> Open(const std::shared_ptr<grpc::Channel>& channel, std::string address) {
    ended().Clear();
    std::shared_ptr<PushStream> stream(new PushStream(channel, std::move(address)));
    stream->self_ = stream;
    stream->stub_->async()->Push(&stream->context_, stream.get());
    stream->AddHold();  // for writes that start outside of reactions
    stream->StartRead(&stream->reply_);
    stream->StartCall();
    return stream;
  }

  // False, with `item` untouched, when the stream is broken.
  bool Send(Item& item) RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      if (broken_) return false;
      items_.push_back(std::move(item));
      if (items_.size() > 1) return true;
    }
    WriteNext();
    return true;
  }
  void Cancel() { context_.TryCancel(); }
  bool broken() const RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return broken_;
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mu_);
      writing_ = false;
    }
    if (ok) WriteNext();  // else the read fails too
  }
  void OnReadDone(bool ok) override {
    if (!ok) return Break();
    std::optional<Answered> ended;
    {
      MutexLock lock(mu_);
      answer_ = FromProto(reply_.verdict());
      ended = TakeIfEnded();
    }
    StartRead(&reply_);
    if (ended.has_value()) End(*std::move(ended));
  }
  void OnDone(const grpc::Status& status) override {
    Break();
    std::deque<Item> failed;
    {
      MutexLock lock(mu_);
      failed.swap(items_);
    }
    const absl::Status why = absl::UnavailableError(
        absl::StrCat("the hand-off to the decode worker at ", address_, " ended: ", status.error_message()));
    for (Item& item : failed) {
      item.bytes = {};
      item.done(why);
    }
    ended().Add(std::move(self_));
  }

 private:
  struct Answered {
    Item item;
    absl::StatusOr<SliceVerdict> answer;
  };

  // Streams that are done, until the next one is opened. Their last reference must not go on gRPC's own thread: with it
  // would go the context, the channel, and, where that is the process's last one, gRPC 1.51's callback queue, which
  // would wait for the very thread that frees it.
  class Ended {
   public:
    void Add(std::shared_ptr<PushStream> stream) RUNAHEAD_EXCLUDES(mu_) {
      MutexLock lock(mu_);
      streams_.push_back(std::move(stream));
    }
    void Clear() RUNAHEAD_EXCLUDES(mu_) {
      std::vector<std::shared_ptr<PushStream>> streams;
      MutexLock lock(mu_);
      streams.swap(streams_);
    }

   private:
    Mutex mu_;
    std::vector<std::shared_ptr<PushStream>> streams_ RUNAHEAD_GUARDED_BY(mu_);
  };
  static Ended& ended() {
    static Ended& ended = *new Ended;  // outlives gRPC's threads
    return ended;
  }

  PushStream(const std::shared_ptr<grpc::Channel>& channel, std::string address)
      : stub_(v1::KvHandoff::NewStub(channel)), address_(std::move(address)) {}

  // Writes what comes next of the first item: its header, a chunk, or nothing.
  void WriteNext() RUNAHEAD_EXCLUDES(mu_) {
    std::optional<Answered> ended;
    {
      MutexLock lock(mu_);
      if (items_.empty() || broken_ || writing_) return;
      const Item& item = items_.front();
      if (header_written_ && written_ == item.bytes.size) {
        all_written_ = true;
        ended = TakeIfEnded();
      } else {
        PrepareNext(item);
        writing_ = true;
        StartWrite(&request_);
      }
    }
    if (ended.has_value()) End(*std::move(ended));
  }

  void PrepareNext(const Item& item) RUNAHEAD_REQUIRES(mu_) {
    if (!std::exchange(header_written_, true)) {
      *request_.mutable_header() = ToProto(item.header);
      return;
    }
    const size_t bytes = std::min(kChunkBytes, item.bytes.size - written_);
    request_.set_chunk(item.bytes.data() + written_, bytes);
    written_ += bytes;
  }

  // The verdict may overtake the reaction to the last write: a slice ends with both.
  std::optional<Answered> TakeIfEnded() RUNAHEAD_REQUIRES(mu_) {
    if (!all_written_ || !answer_.has_value() || items_.empty()) return std::nullopt;
    Answered answered{std::move(items_.front()), *std::exchange(answer_, std::nullopt)};
    items_.pop_front();
    header_written_ = all_written_ = false;
    written_ = 0;
    return answered;
  }

  void End(Answered ended) RUNAHEAD_EXCLUDES(mu_) {
    WriteNext();
    ended.item.bytes = {};
    ended.item.done(std::move(ended.answer));
  }

  void Break() RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      if (std::exchange(broken_, true)) return;
    }
    RemoveHold();
  }

  const std::unique_ptr<v1::KvHandoff::Stub> stub_;
  const std::string address_;  // for messages
  grpc::ClientContext context_;
  std::shared_ptr<PushStream> self_;
  v1::HandoffRequest request_;  // of the write in flight
  v1::HandoffReply reply_;      // of the read in flight
  mutable Mutex mu_;
  bool broken_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::deque<Item> items_ RUNAHEAD_GUARDED_BY(mu_);  // the first is under way
  bool writing_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool header_written_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool all_written_ RUNAHEAD_GUARDED_BY(mu_) = false;
  size_t written_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::optional<absl::StatusOr<SliceVerdict>> answer_ RUNAHEAD_GUARDED_BY(mu_);
};

class GrpcSliceTransport final : public SliceTransport {
 public:
  explicit GrpcSliceTransport(HandoffChannel channel) : channel_(std::move(channel)) {}

  void Send(const PeerId& to, const SliceHeader& header, ConstBufferRef bytes, Done done) override {
    Item item{header, std::move(bytes), std::move(done)};
    absl::Status failed = absl::UnavailableError("the hand-off has stopped");
    {
      MutexLock lock(mu_);
      if (!stopped_) {
        if (const auto open = streams_.find(to.key()); open != streams_.end() && open->second->Send(item)) return;
        absl::erase_if(streams_, [](const auto& stream) { return stream.second->broken(); });
        absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = channel_(to);
        failed = channel.status();
        if (channel.ok()) {
          const std::shared_ptr<PushStream> stream = PushStream::Open(*channel, to.address);
          streams_[to.key()] = stream;
          if (stream->Send(item)) return;
          failed = absl::UnavailableError(absl::StrCat("the hand-off to ", to.address, " broke at once"));
        }
      }
    }
    item.bytes = {};
    item.done(failed);
  }

  void Stop() override {
    MutexLock lock(mu_);
    stopped_ = true;
    for (const auto& [key, stream] : streams_) stream->Cancel();
  }

 private:
  const HandoffChannel channel_;
  Mutex mu_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<PeerKey, std::shared_ptr<PushStream>> streams_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace

std::shared_ptr<SliceTransport> MakeGrpcSliceTransport(HandoffChannel channel) {
  return std::make_shared<GrpcSliceTransport>(std::move(channel));
}

}  // namespace runahead
