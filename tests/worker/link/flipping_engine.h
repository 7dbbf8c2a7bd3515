// A message engine over a network that flips bits of what it sends.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tests/worker/link/host_buffer.h"
#include "worker/link/message_engine.h"

namespace runahead::testing {

// Thread-safe.
class FlippingEngine final : public MessageEngine {
 public:
  explicit FlippingEngine(std::unique_ptr<MessageEngine> engine) : engine_(std::move(engine)) {}

  // The next `count` messages with a frame's bytes carry a flipped bit.
  void Flip(int count) { left_ = count; }
  int flipped() const { return flipped_; }

  const PeerId& self() const override { return engine_->self(); }
  void SetHandler(MessageKind kind, Handler handler) override { engine_->SetHandler(kind, std::move(handler)); }
  void Connect(const PeerId& peer, Done on_death) override { engine_->Connect(peer, std::move(on_death)); }
  void Send(const PeerId& peer, MessageKind kind, std::string header, ConstBufferRef bytes, Done done) override {
    const bool frame = kind == MessageKind::kEdgeFrame || kind == MessageKind::kEdgeBytes;
    if (frame && bytes.size > 0 && left_.fetch_sub(1) > 0) {
      BufferRef flipped = Room(bytes.size);
      std::memcpy(flipped.data(), bytes.data(), bytes.size);
      const size_t hit = static_cast<size_t>(flipped_++);
      flipped.data()[(hit * 7919 + 13) % bytes.size] ^= static_cast<std::byte>(1u << (hit % 8));
      bytes = std::move(flipped);
    }
    engine_->Send(peer, kind, std::move(header), std::move(bytes), std::move(done));
  }
  void Close(const PeerKey& peer) override { engine_->Close(peer); }
  void CloseAll(uint64_t incarnation, uint32_t epoch) override { engine_->CloseAll(incarnation, epoch); }
  void Stop() override { engine_->Stop(); }
  std::string Transport(const PeerId& peer) override { return engine_->Transport(peer); }

 private:
  const std::unique_ptr<MessageEngine> engine_;
  std::atomic<int> left_ = 0, flipped_ = 0;
};

}  // namespace runahead::testing
