// The bytes of a TCP link's connection: hello, proof and frames of a peer who says what it likes, while this end sends,
// accepts, answers and lets go.
#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/socket.h>

#include <deque>
#include <memory>

#include "tests/fuzz/fuzz.h"
#include "tests/worker/link/host_buffer.h"
#include "worker/link/tcp/tcp_connection.h"
#include "worker/link/tcp/tcp_proof.h"
#include "worker/link/tcp/tcp_stream.h"

namespace runahead {
namespace {

const PeerId kSelf{"127.0.0.1:1", 11}, kPeer{"127.0.0.1:2", 22};
constexpr int kOperations = 200;

// One connection and both of its ends. What is promised runs once: each `done`.
class Connection final : public TcpConnection::Listener {
 public:
  explicit Connection(FuzzedDataProvider& from) : from_(from) {
    int ends[2];
    RUNAHEAD_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    peer_ = Descriptor(ends[1]);
    tested_.emplace(1, std::make_unique<PlainStream>(Descriptor(ends[0])), key_, *this,
                    [this](std::function<void()> what) { later_.push_back(std::move(what)); });
  }
  ~Connection() {
    Fail();
    RUNAHEAD_CHECK(promised_ == kept_);
  }

  // Whether the connection is there still.
  bool Step() {
    switch (from_.ConsumeIntegralInRange<int>(0, 5)) {
      case 0:
        Say(from_.ConsumeRandomLengthString(200));
        break;
      case 1:
      case 2:
        SayFrame();
        break;
      case 3:
        Send();
        break;
      case 4:
        Use();
        break;
      default:
        Drain();
    }
    return Read();
  }

  // What a peer says that has the key.
  bool Greet() {
    TcpHello hello;
    hello.from = kPeer.incarnation;
    hello.to = kSelf.incarnation;
    hello.address_bytes = static_cast<uint16_t>(kPeer.address.size());
    const std::string theirs = TcpBytes(hello) + kPeer.address;
    Say(theirs);
    if (!Read()) return false;
    const std::string heard = Drain();
    const size_t own = sizeof(TcpHello) + kSelf.address.size();
    RUNAHEAD_CHECK(heard.size() == own + kTcpProofBytes);
    Say(TcpProof(key_, /*of_caller=*/true, theirs, heard.substr(0, own)));
    RUNAHEAD_CHECK(Read() && proved_);
    return true;
  }

 private:
  absl::Status OnHello(TcpConnection& connection, const PeerId& from, const PeerKey&) override {
    RUNAHEAD_CHECK(!from.address.empty() && from.address.size() <= TcpHello::kMaxAddress);
    connection.SendHello(kSelf, from.key());
    return absl::OkStatus();
  }
  absl::Status OnProved(TcpConnection&, const PeerId&) override {
    proved_ = true;
    return absl::OkStatus();
  }
  void OnMessage(TcpConnection&, MessageKind kind, std::string_view header,
                 const std::shared_ptr<const TcpConnection::Offer>& offer) override {
    RUNAHEAD_CHECK(proved_ && header.size() <= kMaxHeader && IsTransfer(kind) == (offer != nullptr));
    if (offer == nullptr) return;
    RUNAHEAD_CHECK(!offer->eager || offer->bytes.size() == offer->size);
    offers_.push_back(offer);
  }
  void OnQueued(TcpConnection&) override {}
  void OnBroken(TcpConnection&, const absl::Status& why) override {
    fuzz::CheckRefusal(why, "");
    broken_ = true;
  }

  bool Read() {
    if (!tested_) return false;
    const absl::Status read = tested_->Read();
    if (!read.ok()) fuzz::CheckRefusal(read, "");
    while (!later_.empty()) {
      const auto what = std::move(later_.front());
      later_.pop_front();
      what();
    }
    if (!read.ok() || broken_) Fail();
    return tested_.has_value();
  }

  void Say(std::string_view bytes) {
    (void)send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);  // what does not fit is lost
  }

  // A frame whose prefix is whole, whatever is in it.
  void SayFrame() {
    TcpPrefix prefix;
    prefix.frame = static_cast<TcpFrame>(from_.ConsumeIntegralInRange<int>(0, 8));
    prefix.answer = from_.ConsumeIntegral<uint8_t>();
    prefix.kind = from_.ConsumeIntegralInRange<uint16_t>(2, 8);
    prefix.transfer = from_.ConsumeBool() ? next_ : from_.ConsumeIntegralInRange<uint64_t>(0, 8);
    const std::string header = from_.ConsumeRandomLengthString(40);
    std::string bytes = from_.ConsumeRandomLengthString(300);
    prefix.header_bytes = static_cast<uint32_t>(header.size());
    prefix.bytes = from_.ConsumeBool() ? bytes.size() : from_.ConsumeIntegral<uint64_t>();
    prefix.sum = SumOf(bytes) + (from_.ConsumeIntegralInRange<int>(0, 7) == 7);
    const bool opens = prefix.frame == TcpFrame::kMessage || prefix.frame == TcpFrame::kOffer;
    if (opens && prefix.transfer == next_) ++next_;
    if (prefix.frame != TcpFrame::kMessage && prefix.frame != TcpFrame::kChunk) bytes.clear();
    Say(TcpBytes(TcpSealed(prefix, opens ? header : "")) + (opens ? header : "") + bytes);
  }

  static uint64_t SumOf(const std::string& bytes) {
    RunningSum sum(/*seed=*/0);
    sum.Add(bytes.data(), bytes.size());
    return sum.value();
  }

  void Send() {
    const bool transfer = from_.ConsumeBool();
    const size_t size = transfer ? from_.ConsumeIntegralInRange<size_t>(0, 3 * kEagerBytes) : 0;
    Outbound bytes;
    if (size > 0) bytes = Outbound(testing::Pattern(size, size));
    tested_->Send(transfer ? MessageKind::kSlice : MessageKind::kEdgeControl, from_.ConsumeRandomLengthString(40),
                  std::move(bytes), Promise());
  }

  // Something with the oldest offer.
  void Use() {
    if (offers_.empty()) return;
    const auto offer = offers_.front();
    const int how = from_.ConsumeIntegralInRange<int>(0, 3);
    if (how > 0 && offer->size <= (size_t{1} << 20)) {
      const BufferRef into = testing::Room(offer->size + (how == 3));
      Inbound what;
      what.into = {into};
      tested_->Accept(*offer, std::move(what),
                      [into, promise = Promise()](const absl::Status& status, const Came& came) {
                        // What is said to have come did.
                        if (status.ok()) RUNAHEAD_CHECK(SumOf(std::string(testing::Bytes(into))) == came.sum);
                        promise(status);
                      });
      if (how == 1) return;
    }
    offers_.pop_front();
    if (tested_) tested_->Answer(offer->transfer, absl::StatusCode::kOk);
  }

  // Takes what this end writes.
  std::string Drain() {
    RUNAHEAD_CHECK(tested_->Write().ok());
    std::string heard(1 << 16, 0);
    const ssize_t got = recv(peer_.get(), heard.data(), heard.size(), 0);
    heard.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return heard;
  }

  std::function<void(absl::Status)> Promise() {
    ++promised_;
    return [this, ran = std::make_shared<bool>(false)](const absl::Status&) {
      RUNAHEAD_CHECK(!std::exchange(*ran, true));
      ++kept_;
    };
  }

  void Fail() {
    if (!tested_) return;
    for (const Event& event : tested_->Fail(absl::UnavailableError("it is over"))) RUNAHEAD_CHECK(event.fired());
    while (!later_.empty()) {
      const auto what = std::move(later_.front());
      later_.pop_front();
      what();
    }
    offers_.clear();
    tested_.reset();
  }

  FuzzedDataProvider& from_;
  const ClusterKey key_;
  Descriptor peer_;
  std::optional<TcpConnection> tested_;
  std::deque<std::function<void()>> later_;
  std::deque<std::shared_ptr<const TcpConnection::Offer>> offers_;
  bool proved_ = false, broken_ = false;
  uint64_t next_ = 0;  // the peer's next transfer
  int promised_ = 0, kept_ = 0;
};

}  // namespace

void Fuzz(std::string_view input) {
  FuzzedDataProvider from(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  Connection connection(from);
  if (from.ConsumeBool() && !connection.Greet()) return;
  for (int i = 0; i < kOperations && from.remaining_bytes() > 0; ++i) {
    if (!connection.Step()) return;
  }
}

}  // namespace runahead
