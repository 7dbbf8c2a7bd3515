// A message engine over a network that flips bits of what it sends.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tests/testing/remote_device.h"
#include "tests/testing/sum_of.h"
#include "tests/worker/link/host_buffer.h"
#include "worker/link/message_engine.h"

namespace runahead::testing {

// Thread-safe. Frames that are staged are memory of `device`, which outlives it.
class FlippingEngine final : public MessageEngine {
 public:
  FlippingEngine(std::unique_ptr<MessageEngine> engine, RemoteDevice& device)
      : engine_(std::move(engine)), device_(device) {}

  // The next `count` times that a frame's bytes go, they carry a flipped bit.
  void Flip(int count) { left_ = count; }
  int flipped() const { return flipped_; }

  const PeerId& self() const override { return engine_->self(); }
  void SetHandler(MessageKind kind, Handler handler) override { engine_->SetHandler(kind, std::move(handler)); }
  void Connect(const PeerId& peer, Done on_death) override { engine_->Connect(peer, std::move(on_death)); }
  void Send(const PeerId& peer, MessageKind kind, std::string header, Outbound bytes, Done done) override {
    if (kind == MessageKind::kEdgeFrame && bytes.bytes.size > 0 && left_ > 0) bytes = Damaged(std::move(bytes));
    engine_->Send(peer, kind, std::move(header), std::move(bytes), std::move(done));
  }
  void Break(const PeerKey& peer, const absl::Status& why) override { engine_->Break(peer, why); }
  void Close(const PeerKey& peer) override { engine_->Close(peer); }
  void CloseAll(const std::function<bool(const PeerKey&)>& which) override { engine_->CloseAll(which); }
  void Stop() override { engine_->Stop(); }
  std::string Transport(const PeerId& peer) override { return engine_->Transport(peer); }

 private:
  // A copy whose bits are flipped as long as there are some to flip, under the sum of what was to be sent.
  Outbound Damaged(Outbound bytes) {
    const bool staged = bytes.lane != nullptr;
    const std::string original = staged ? device_.Peek(bytes.bytes) : std::string(Bytes(bytes.bytes));
    if (!bytes.sum.has_value()) bytes.sum = SumOf(bytes.seed, original.data(), original.size());
    BufferRef copy = Room(original.size());
    std::memcpy(copy.data(), original.data(), original.size());
    if (staged) copy = device_.Holding(copy);
    const auto flip_one = [this, staged, copy](int64_t hit) {
      const size_t at = static_cast<size_t>(hit * 7919 + 13) % copy.size;
      if (staged) {
        device_.Flip(copy, at, static_cast<int>(hit % 8));
      } else {
        copy.data()[at] ^= static_cast<std::byte>(1u << (hit % 8));
      }
    };
    const auto flipped = std::make_shared<int64_t>(-1);  // which one is in it; -1: none
    const auto pass = [this, flip_one, flipped] {
      if (*flipped >= 0) flip_one(*flipped);
      *flipped = left_.fetch_sub(1) > 0 ? flipped_++ : -1;
      if (*flipped >= 0) flip_one(*flipped);
    };
    pass();
    bytes.bytes = copy;
    bytes.on_again = [pass, on_again = std::move(bytes.on_again)] {
      pass();
      if (on_again) on_again();
    };
    return bytes;
  }

  const std::unique_ptr<MessageEngine> engine_;
  RemoteDevice& device_;
  std::atomic<int> left_ = 0, flipped_ = 0;
};

}  // namespace runahead::testing
