// What a neighbour says over an edge of the prefill line: frames and control messages of any content, while this end
// receives, sends, finishes and drops. Whatever came, every event fires in the end.
#include <fuzzer/FuzzedDataProvider.h>

#include <deque>
#include <map>

#include "tests/fuzz/fuzz.h"
#include "tests/worker/link/host_buffer.h"
#include "worker/link/message/message_edge.h"

namespace runahead {
namespace {

constexpr int kOperations = 100;
const PeerId kPeer{"there", 22, {}, 0, 1};

// An engine whose other end is the input: what is sent or accepted is under way until it says how that ends.
class ToldEngine final : public MessageEngine {
 public:
  const PeerId& self() const override { return self_; }
  void SetHandler(MessageKind kind, Handler handler) override { handlers_[kind] = std::move(handler); }
  void Connect(const PeerId&, Done on_death) override { on_death_ = std::move(on_death); }
  void Send(const PeerId&, MessageKind, std::string header, Outbound, Done done) override {
    RUNAHEAD_CHECK(header.size() <= kMaxHeader);
    if (closed_) return done(absl::UnavailableError("it is closed"));
    under_way_.push_back([done = std::move(done)](const absl::Status& status) { done(status); });
  }
  void Break(const PeerKey&, const absl::Status&) override {}
  void Close(const PeerKey&) override {
    closed_ = true;
    while (!under_way_.empty()) EndOne(absl::UnavailableError("it is closed"));
  }
  void CloseAll(const std::function<bool(const PeerKey&)>&) override { Close({}); }
  void Stop() override { Close({}); }
  std::string Transport(const PeerId&) override { return "told"; }

  void Deliver(MessageKind kind, const std::string& header, size_t size) {
    const auto handler = handlers_.find(kind);
    if (closed_ || handler == handlers_.end() || !handler->second) return;
    handler->second({kPeer.key(), header, IsTransfer(kind) ? std::make_shared<Payload>(*this, size) : nullptr});
  }
  void EndOne(const absl::Status& status) {
    if (under_way_.empty()) return;
    const auto end = std::move(under_way_.front());
    under_way_.pop_front();
    end(status);
  }
  void Die() {
    if (closed_) return;
    if (const Done on_death = std::exchange(on_death_, nullptr)) on_death(absl::UnavailableError("the peer is gone"));
    Close({});
  }

 private:
  class Payload final : public MessagePayload {
   public:
    Payload(ToldEngine& engine, size_t size) : engine_(engine), size_(size) {}
    size_t size() const override { return size_; }
    void Accept(Inbound into, ReceiveDone done) override {
      size_t places = 0;
      for (const BufferRef& piece : into.into) {
        std::memset(piece.data(), 0x5A, piece.size);
        places += piece.size;
      }
      RUNAHEAD_CHECK(places == size_);
      if (engine_.closed_) return done(absl::UnavailableError("it is closed"), {});
      engine_.under_way_.push_back([done = std::move(done)](const absl::Status& status) { done(status, {}); });
    }
    void Answer(absl::StatusCode) override { RUNAHEAD_CHECK(!std::exchange(answered_, true)); }

   private:
    ToldEngine& engine_;
    const size_t size_;
    bool answered_ = false;
  };

  const PeerId self_{"here", 11};
  std::map<MessageKind, Handler> handlers_;
  Done on_death_;
  std::deque<std::function<void(const absl::Status&)>> under_way_;
  bool closed_ = false;
};

// One edge and both of its ends.
class Neighbours {
 public:
  explicit Neighbours(FuzzedDataProvider& from) : from_(from), factory_(engine_) {}
  ~Neighbours() {
    factory_.Close(kPeer);
    for (const Event& event : events_) RUNAHEAD_CHECK(event.fired());
    RUNAHEAD_CHECK(factory_.live_jobs(kPeer) == 0);
  }

  void Step() {
    switch (from_.ConsumeIntegralInRange<int>(0, 9)) {
      case 0:
        return Open();
      case 1:
        return engine_.Deliver(from_.PickValueInArray({MessageKind::kEdgeFrame, MessageKind::kEdgeControl,
                                                       MessageKind::kDeviceEdge, MessageKind::kSlice}),
                               from_.ConsumeRandomLengthString(40), from_.ConsumeIntegralInRange<size_t>(0, 20'000));
      case 2:
        return engine_.Deliver(MessageKind::kEdgeFrame, Frame(), from_.ConsumeIntegralInRange<size_t>(7, 9));
      case 3:
        return engine_.Deliver(MessageKind::kEdgeControl, Control(), 0);
      case 4:
        return engine_.EndOne(from_.ConsumeBool() ? absl::OkStatus() : absl::DataLossError("damaged"));
      case 5:
        if (from_.ConsumeIntegralInRange<int>(0, 15) == 0) engine_.Die();
        return;
      default:
        if (edge_ != nullptr) Use();
    }
  }

 private:
  void Open() {
    const auto edge = factory_.Open(kPeer);
    if (edge.ok()) {
      edge_ = *edge;
    } else {
      fuzz::CheckRefusal(edge.status(), "");
    }
  }

  FrameId Id() {
    return {from_.ConsumeIntegralInRange<JobId>(0, 2), from_.ConsumeIntegralInRange<int32_t>(-1, 1),
            from_.ConsumeIntegralInRange<int32_t>(-1, 1)};
  }

  void Use() {
    switch (from_.ConsumeIntegralInRange<int>(0, 3)) {
      case 0:
        events_.push_back(edge_->Recv(Id(), testing::Room(8)));
        return;
      case 1:
        events_.push_back(edge_->Send(Id(), testing::Pattern(8, 1), Event()));
        return;
      case 2:
        events_.push_back(edge_->Finish(from_.ConsumeIntegralInRange<JobId>(0, 2)));
        return;
      default:
        edge_->Drop(from_.ConsumeIntegralInRange<JobId>(0, 2));
        (void)edge_->Health().ok();
    }
  }

  // Headers as neighbours of this version write them.
  template <typename... Fields>
  static std::string Packed(Fields... fields) {
    std::string bytes;
    (bytes.append(reinterpret_cast<const char*>(&fields), sizeof(fields)), ...);
    return bytes;
  }
  std::string Frame() {
    const FrameId id = Id();
    return Packed(uint64_t{id.job}, id.layer, id.piece);
  }
  std::string Control() {
    const auto job = from_.ConsumeIntegralInRange<uint64_t>(0, 2);
    const auto frames =
        from_.ConsumeBool() ? from_.ConsumeIntegralInRange<uint32_t>(0, 3) : from_.ConsumeIntegral<uint32_t>();
    return Packed(job, frames, from_.ConsumeIntegralInRange<uint16_t>(0, 20),
                  from_.ConsumeIntegralInRange<uint16_t>(0, 5));
  }

  FuzzedDataProvider& from_;
  ToldEngine engine_;
  MessageEdgeFactory factory_;
  std::shared_ptr<Edge> edge_;
  std::vector<Event> events_;
};

}  // namespace

void Fuzz(std::string_view input) {
  FuzzedDataProvider from(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  Neighbours neighbours(from);
  for (int i = 0; i < kOperations && from.remaining_bytes() > 0; ++i) neighbours.Step();
}

}  // namespace runahead
