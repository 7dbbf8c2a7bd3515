#include "tests/testing/loopback.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "tests/testing/sum_of.h"

namespace runahead {
namespace {

std::string Name(const PeerId& peer) {
  return absl::StrCat(peer.address, " ", Describe(peer.key()));
}

}  // namespace

// The bytes of one announced frame. Each end's callback runs exactly once: at the copy, the discard, or the cut.
// Neither end's buffer is held any more when they run.
struct LoopbackNetwork::Transfer {
  PeerId from, to;
  FrameId id;
  FrameSum sum;
  size_t size = 0;
  Mutex mu;
  ConstBufferRef bytes RUNAHEAD_GUARDED_BY(mu);
  std::function<void(absl::Status)> sent RUNAHEAD_GUARDED_BY(mu);
  ReceiveDone received RUNAHEAD_GUARDED_BY(mu);
  BufferRef into RUNAHEAD_GUARDED_BY(mu);

  void Complete(const absl::Status& status, bool copy) RUNAHEAD_EXCLUDES(mu) {
    std::function<void(absl::Status)> tell_sender;
    ReceiveDone tell_receiver;
    WireTime time;
    absl::Status ended = status;
    {
      MutexLock lock(mu);
      time.first = MonotonicNow();
      if (copy && sent && size > 0) std::memcpy(into.data(), bytes.data(), size);
      if (copy && sent && testing::SumOf(SeedOf(id, size), size == 0 ? nullptr : into.data(), size) != sum.value)
        ended = DamagedFrame(id, 1);
      time.last = MonotonicNow();
      bytes = {};
      into = {};
      tell_sender.swap(sent);
      tell_receiver.swap(received);
    }
    if (tell_sender) tell_sender(ended);
    if (tell_receiver) tell_receiver(ended, {time, sum.value});
  }
};

class LoopbackNetwork::Frame final : public MessagePayload {
 public:
  Frame(std::weak_ptr<LoopbackNetwork> network, std::shared_ptr<Transfer> transfer)
      : network_(std::move(network)), transfer_(std::move(transfer)) {}
  ~Frame() override {
    if (!accepted_) Settle(absl::CancelledError("the peer discarded the frame"), /*copy=*/false);
  }
  size_t size() const override { return transfer_->size; }
  void Accept(Inbound into, ReceiveDone done) override {
    accepted_ = true;
    bool cut = false;
    {
      MutexLock lock(transfer_->mu);
      cut = !transfer_->sent;
      if (!cut) {
        transfer_->into = std::move(into.into.front());
        transfer_->received = std::move(done);
      }
    }
    if (cut) return done(absl::UnavailableError("the edge is dead"), {});
    Settle(absl::OkStatus(), /*copy=*/true);
  }
  void Answer(absl::StatusCode) override {}  // the copy, or the discard, is the answer

 private:
  void Settle(absl::Status status, bool copy) {
    const auto network = network_.lock();
    const auto settle = [network = network.get(), transfer = transfer_, status, copy] {
      transfer->Complete(status, copy);
      MutexLock lock(network->mu_);
      network->transfers_.erase(transfer);
    };
    if (network != nullptr && network->Post(transfer_->to, transfer_->from, settle)) return;
    transfer_->Complete(absl::UnavailableError("the edge is dead"), /*copy=*/false);
    if (network == nullptr) return;
    MutexLock lock(network->mu_);
    network->transfers_.erase(transfer_);
  }

  const std::weak_ptr<LoopbackNetwork> network_;
  const std::shared_ptr<Transfer> transfer_;
  bool accepted_ = false;
};

class LoopbackNetwork::Wire final : public EdgeWire {
 public:
  Wire(std::weak_ptr<LoopbackNetwork> network, PeerId self, PeerId peer)
      : network_(std::move(network)), self_(std::move(self)), peer_(std::move(peer)) {}
  void SendFrame(const FrameId& id, ConstBufferRef bytes, FrameSum sum,
                 std::function<void(absl::Status)> done) override {
    if (const auto network = network_.lock()) return network->SendFrame(self_, peer_, id, bytes, sum, std::move(done));
    done(absl::UnavailableError("the network is gone"));
  }
  void AcceptFrame(const FrameId&, const ArrivedFrame& frame, BufferRef into, FrameDone done) override {
    Inbound what;
    what.into = {std::move(into)};
    frame->Accept(std::move(what), [done = std::move(done)](const absl::Status& status, const Came& came) {
      done(status, {came, {FrameSum::Kind::kHost, came.sum}});
    });
  }
  void Fail(const absl::Status&) override {}
  void AwaitEnd() override {}
  void SendControl(const EdgeControl& control) override {
    const auto network = network_.lock();
    if (network == nullptr) return;
    network->Post(self_, peer_, [network = network.get(), self = self_, peer = peer_, control] {
      network->Core(peer, self)->OnControl(control);
    });
  }

 private:
  const std::weak_ptr<LoopbackNetwork> network_;
  const PeerId self_, peer_;
};

class LoopbackNetwork::Factory final : public EdgeFactory {
 public:
  Factory(std::shared_ptr<LoopbackNetwork> network, PeerId self)
      : network_(std::move(network)), self_(std::move(self)) {}
  PeerId self() const override { return self_; }
  absl::StatusOr<std::shared_ptr<Edge>> Open(const PeerId& peer) override {
    std::shared_ptr<EdgeCore> core = network_->Core(SelfFor(peer), peer);
    RUNAHEAD_RETURN_IF_ERROR(core->Health());
    return core;
  }
  void Close(const PeerId& peer) override {
    const PeerId self = SelfFor(peer);
    network_->Cut([&self, &peer](const PeerId& a, const PeerId& b) { return a == self && b == peer; });
  }

 private:
  // This end of the connection that `peer` names.
  PeerId SelfFor(const PeerId& peer) const {
    PeerId self = self_;
    self.generation = peer.generation;
    return self;
  }
  const std::shared_ptr<LoopbackNetwork> network_;
  const PeerId self_;
};

std::shared_ptr<LoopbackNetwork> LoopbackNetwork::Create(Delivery delivery) {
  return std::shared_ptr<LoopbackNetwork>(new LoopbackNetwork(delivery));
}
LoopbackNetwork::~LoopbackNetwork() = default;

std::unique_ptr<EdgeFactory> LoopbackNetwork::Join(const PeerId& self) {
  {
    MutexLock lock(mu_);
    alive_.push_back(self);
  }
  return std::make_unique<Factory>(shared_from_this(), self);
}

bool LoopbackNetwork::IsAlive(const PeerId& peer) const {
  PeerId process = peer;
  process.generation = 0;
  return std::find(alive_.begin(), alive_.end(), process) != alive_.end();
}

void LoopbackNetwork::Kill(const PeerId& peer) {
  const auto is_of = [&peer](PeerId end) {
    end.generation = 0;
    return end == peer;
  };
  const auto of_peer = [&is_of](const PeerId& a, const PeerId& b) { return is_of(a) || is_of(b); };
  Cut(of_peer);  // first: a frame sent to nobody over an edge that seems alive would look discarded, not lost
  {
    MutexLock lock(mu_);
    alive_.erase(std::remove(alive_.begin(), alive_.end(), peer), alive_.end());
  }
  Cut(of_peer);  // and what was opened or sent meanwhile
}

void LoopbackNetwork::Cut(const std::function<bool(const PeerId&, const PeerId&)>& meant) {
  const auto hit = [&meant](const PeerId& a, const PeerId& b) { return meant(a, b) || meant(b, a); };
  std::vector<Side> dying;
  std::vector<std::shared_ptr<Transfer>> cut;
  std::deque<Step> lost;  // destroyed without the lock: frames discard themselves
  {
    MutexLock lock(mu_);
    for (const Side& side : sides_) {
      if (hit(side.self, side.peer)) dying.push_back(side);
    }
    for (const auto& transfer : transfers_) {
      if (hit(transfer->from, transfer->to)) cut.push_back(transfer);
    }
    for (const auto& transfer : cut) transfers_.erase(transfer);
    std::deque<Step> kept;
    for (Step& step : steps_) (hit(step.from, step.to) ? lost : kept).push_back(std::move(step));
    steps_ = std::move(kept);
  }
  for (const Side& side : dying)
    side.core->Die(absl::UnavailableError(absl::StrCat("the edge to ", Name(side.peer), " is dead")));
  for (const auto& transfer : cut) transfer->Complete(absl::UnavailableError("the edge is dead"), /*copy=*/false);
}

std::shared_ptr<EdgeCore> LoopbackNetwork::Core(const PeerId& self, const PeerId& peer) {
  std::shared_ptr<EdgeCore> core;
  bool dead = false;
  {
    MutexLock lock(mu_);
    for (const Side& side : sides_) {
      if (side.self == self && side.peer == peer) return side.core;
    }
    core = EdgeCore::Create(std::make_shared<Wire>(weak_from_this(), self, peer), Name(peer));
    sides_.push_back({self, peer, core});
    dead = !IsAlive(peer) || !IsAlive(self);
  }
  core->OnControl({EdgeControl::Kind::kOpened});  // there is no time at which one end is open and the other is not
  if (dead) core->Die(absl::UnavailableError(absl::StrCat("nobody is at ", Name(peer))));
  return core;
}

void LoopbackNetwork::SendFrame(const PeerId& from, const PeerId& to, const FrameId& id, ConstBufferRef bytes,
                                FrameSum sum, std::function<void(absl::Status)> done) {
  auto transfer = std::make_shared<Transfer>();
  transfer->from = from;
  transfer->to = to;
  transfer->id = id;
  transfer->size = bytes.size;
  if (sum.kind != FrameSum::Kind::kHost) {
    sum = {FrameSum::Kind::kHost,
           testing::SumOf(SeedOf(id, bytes.size), bytes.size == 0 ? nullptr : bytes.data(), bytes.size)};
  }
  transfer->sum = sum;
  if (!Core(from, to)->Health().ok()) return done(absl::UnavailableError("the edge is dead"));
  {
    MutexLock lock(transfer->mu);
    transfer->bytes = std::move(bytes);
    transfer->sent = std::move(done);
  }
  {
    MutexLock lock(mu_);
    transfers_.insert(transfer);
  }
  auto frame = std::make_shared<Frame>(weak_from_this(), transfer);
  Post(from, to, [this, from, to, id, frame]() mutable { Core(to, from)->OnFrame(id, std::move(frame)); });
}

bool LoopbackNetwork::Post(const PeerId& from, const PeerId& to, std::function<void()> run) {
  {
    MutexLock lock(mu_);
    if (!IsAlive(from) || !IsAlive(to)) return false;
    steps_.push_back({from, to, std::move(run)});
    if (delivery_ == Delivery::kManual || delivering_) return true;
    delivering_ = true;
  }
  for (;;) {
    Step step;
    {
      MutexLock lock(mu_);
      if (steps_.empty()) {
        delivering_ = false;
        return true;
      }
      step = std::move(steps_.front());
      steps_.pop_front();
    }
    step.run();
  }
}

bool LoopbackNetwork::Take(size_t index, Step& step) {
  MutexLock lock(mu_);
  if (index >= steps_.size()) return false;
  step = std::move(steps_[index]);
  steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(index));
  return true;
}

bool LoopbackNetwork::Deliver(size_t index) {
  Step step;
  if (!Take(index, step)) return false;
  step.run();
  return true;
}

void LoopbackNetwork::DeliverAll() {
  while (Deliver()) {
  }
}

size_t LoopbackNetwork::pending() const {
  MutexLock lock(mu_);
  return steps_.size();
}

size_t LoopbackNetwork::live_jobs(const PeerId& self, const PeerId& peer) const {
  MutexLock lock(mu_);
  for (const Side& side : sides_) {
    if (side.self == self && side.peer == peer) return side.core->live_jobs();
  }
  return 0;
}

}  // namespace runahead
