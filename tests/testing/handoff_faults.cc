#include "tests/testing/handoff_faults.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/testing/await_change.h"
#include "tests/testing/sum_of.h"
#include "tests/worker/link/host_buffer.h"

namespace runahead::testing {
namespace {

class FaultyTransport final : public SliceTransport {
 public:
  FaultyTransport(std::shared_ptr<SliceTransport> transport, HandoffFaults* sending, HandoffFaults* receiving)
      : transport_(std::move(transport)), sending_(sending), receiving_(receiving) {}

  void Send(const PeerId& to, const Slice& slice, Outbound bytes, Done done) override {
    if (sending_ != nullptr) bytes = sending_->Tamper(std::move(bytes));
    if (receiving_ != nullptr) {
      done = [receiving = receiving_, done = std::move(done)](const absl::Status& verdict) {
        if (absl::IsUnavailable(verdict)) return done(verdict);  // nobody answered
        receiving->Answer([done, verdict] { done(verdict); });
      };
    }
    transport_->Send(to, slice, std::move(bytes), std::move(done));
  }
  void Stop() override { transport_->Stop(); }

 private:
  const std::shared_ptr<SliceTransport> transport_;
  HandoffFaults* const sending_;
  HandoffFaults* const receiving_;
};

// What its user answers is answered later.
class HoldingPayload final : public MessagePayload {
 public:
  HoldingPayload(std::shared_ptr<MessagePayload> payload, HandoffFaults& faults)
      : payload_(std::move(payload)), faults_(faults) {}
  size_t size() const override { return payload_->size(); }
  void Accept(Inbound into, ReceiveDone done) override { payload_->Accept(std::move(into), std::move(done)); }
  void Answer(absl::StatusCode answer) override {
    faults_.Answer([payload = payload_, answer] { payload->Answer(answer); });
  }

 private:
  const std::shared_ptr<MessagePayload> payload_;
  HandoffFaults& faults_;
};

class VerdictHoldingEngine final : public MessageEngine {
 public:
  VerdictHoldingEngine(std::unique_ptr<MessageEngine> engine, HandoffFaults& faults)
      : engine_(std::move(engine)), faults_(faults) {}

  const PeerId& self() const override { return engine_->self(); }
  void SetHandler(MessageKind kind, Handler handler) override {
    if (!handler || kind != MessageKind::kSlice) return engine_->SetHandler(kind, std::move(handler));
    engine_->SetHandler(kind, [this, handler = std::move(handler)](const Message& message) {
      handler({message.from, message.header, std::make_shared<HoldingPayload>(message.payload, faults_)});
    });
  }
  void Connect(const PeerId& peer, Done on_death) override { engine_->Connect(peer, std::move(on_death)); }
  void Send(const PeerId& peer, MessageKind kind, std::string header, Outbound bytes, Done done) override {
    engine_->Send(peer, kind, std::move(header), std::move(bytes), std::move(done));
  }
  void Break(const PeerKey& peer, const absl::Status& why) override { engine_->Break(peer, why); }
  void Close(const PeerKey& peer) override { engine_->Close(peer); }
  void CloseAll(const std::function<bool(const PeerKey&)>& which) override { engine_->CloseAll(which); }
  void Stop() override { engine_->Stop(); }
  std::string Transport(const PeerId& peer) override { return engine_->Transport(peer); }

 private:
  const std::unique_ptr<MessageEngine> engine_;
  HandoffFaults& faults_;
};

}  // namespace

void HandoffFaults::CorruptSends(int count) {
  MutexLock lock(mu_);
  corrupt_ = count;
}

void HandoffFaults::HoldVerdicts() {
  MutexLock lock(mu_);
  holding_ = true;
}

void HandoffFaults::ReleaseVerdicts() {
  std::vector<std::function<void()>> answers;
  {
    MutexLock lock(mu_);
    holding_ = false;
    answers.swap(answers_);
  }
  for (const auto& answer : answers) answer();
}

void HandoffFaults::AwaitHeld(size_t count) {
  MutexLock lock(mu_);
  ChangeWait wait(absl::StrCat(count, " answers are held"));
  while (answers_.size() < count) {
    if (!wait.Next(mu_, held_)) return;
  }
}

Outbound HandoffFaults::Tamper(Outbound bytes) {
  const size_t size = bytes.bytes.size;
  if (size == 0 || !TakeCorrupt()) return bytes;
  const BufferRef tampered = Room(size);
  std::memcpy(tampered.data(), bytes.bytes.data(), size);
  bytes.sum = SumOf(bytes.seed, tampered.data(), size);
  tampered.data()[size / 2] ^= std::byte{1};
  bytes.bytes = tampered;
  bytes.on_again = [this, tampered, is_corrupt = true, on_again = std::move(bytes.on_again)]() mutable {
    if (TakeCorrupt() != is_corrupt) {
      is_corrupt = !is_corrupt;
      tampered.data()[tampered.size / 2] ^= std::byte{1};
    }
    if (on_again) on_again();
  };
  return bytes;
}

bool HandoffFaults::TakeCorrupt() {
  MutexLock lock(mu_);
  return corrupt_ > 0 && corrupt_-- > 0;
}

void HandoffFaults::Answer(std::function<void()> answer) {
  {
    MutexLock lock(mu_);
    if (holding_) {
      answers_.push_back(std::move(answer));
      held_.NotifyAll();
      return;
    }
  }
  answer();
}

std::shared_ptr<SliceTransport> WithFaults(std::shared_ptr<SliceTransport> transport, HandoffFaults* sending,
                                           HandoffFaults* receiving) {
  return std::make_shared<FaultyTransport>(std::move(transport), sending, receiving);
}

std::unique_ptr<MessageEngine> HoldingVerdicts(std::unique_ptr<MessageEngine> engine, HandoffFaults& faults) {
  return std::make_unique<VerdictHoldingEngine>(std::move(engine), faults);
}

}  // namespace runahead::testing
