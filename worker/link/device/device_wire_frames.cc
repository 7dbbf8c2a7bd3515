// The frames of a device edge: announced, asked for, moved, compared.
#include <algorithm>
#include <utility>

#include "kernels/base/monotonic.h"
#include "worker/link/device/device_wire.h"

namespace runahead {

// An announced frame at the receiving side.
class DeviceWire::Frame final : public ArrivedFrame {
 public:
  Frame(std::shared_ptr<DeviceWire> wire, const FrameId& id, uint64_t sequence, size_t size)
      : wire_(std::move(wire)), id_(id), sequence_(sequence), size_(size) {}
  ~Frame() override {
    if (!accepted_) wire_->Skip(sequence_);
  }
  size_t size() const override { return size_; }
  void Accept(BufferRef into, FrameDone done) override {
    accepted_ = true;
    Coming coming;
    coming.id = id_;
    coming.into = std::move(into);
    coming.done = std::move(done);
    wire_->Accept(sequence_, std::move(coming));
  }

 private:
  const std::shared_ptr<DeviceWire> wire_;
  const FrameId id_;
  const uint64_t sequence_;
  const size_t size_;
  bool accepted_ = false;
};

void DeviceWire::Say(DeviceMessage::Kind kind, uint64_t sequence, uint64_t sum) {
  DeviceMessage message;
  message.kind = kind;
  message.sequence = sequence;
  message.sum = sum;
  Post(message);
}

void DeviceWire::SendFrame(const FrameId& id, ConstBufferRef bytes, FrameSum sum, Done done) {
  if (sum.kind != FrameSum::Kind::kDevice) sum = {};
  absl::Status why;
  {
    MutexLock lock(mu_);
    why = why_;
    if (why.ok()) {
      DeviceMessage announce;
      announce.kind = DeviceMessage::Kind::kAnnounce;
      announce.job = id.job;
      announce.layer = id.layer;
      announce.piece = id.piece;
      announce.sequence = next_++;
      announce.size = bytes.size;
      announced_.emplace(announce.sequence, Outgoing{std::move(bytes), sum, std::move(done)});
      return Post(announce);
    }
  }
  EndWith(why, done);
}

void DeviceWire::OnGo(uint64_t sequence) {
  Started started;
  bool known = false, again = false;
  {
    MutexLock lock(mu_);
    if (!why_.ok()) return;
    const auto found = announced_.find(sequence);
    known = found != announced_.end() && !found->second.answer.has_value();
    if (known) {
      again = std::exchange(found->second.asked, true);
      ++found->second.moving;
      if (comms_.out == nullptr) {
        going_.push_back(sequence);
      } else {
        StartSend(sequence, started);
      }
    }
  }
  if (again && shared_.faults.on_retry) shared_.faults.on_retry();
  Watch(std::move(started));
  // Its receive would meet another frame's send.
  if (!known) Fail(absl::UnavailableError("the peer asked for a frame that was not announced"), /*tell_peer=*/true);
}

void DeviceWire::StartSend(uint64_t sequence, Started& started) {
  Outgoing& frame = announced_.at(sequence);
  if (frame.sum.kind == FrameSum::Kind::kDevice) Say(DeviceMessage::Kind::kSum, sequence, frame.sum.value);
  const bool empty = frame.bytes.size == 0, known = empty || frame.sum.kind == FrameSum::Kind::kDevice;
  const auto sum = known ? nullptr : std::make_shared<uint64_t>();
  const Event sent = empty ? Event() : comms_.out->Send(frame.bytes, sum);
  started.emplace_back(sent, [wire = shared_from_this(), sequence, sum](const absl::Status& status) {
    wire->SendEnded(sequence, status, sum.get());
  });
}

void DeviceWire::SendEnded(uint64_t sequence, const absl::Status& status, const uint64_t* sum) {
  std::optional<Outgoing> ended;
  {
    MutexLock lock(mu_);
    Outgoing& frame = announced_.at(sequence);
    --frame.moving;
    if (!status.ok() && !frame.answer.has_value()) frame.answer = status;
    if (status.ok() && sum != nullptr && why_.ok()) {
      frame.sum = {FrameSum::Kind::kDevice, *sum};
      Say(DeviceMessage::Kind::kSum, sequence, *sum);
    }
    ended = TakeIfEnded(sequence);
  }
  if (!ended.has_value()) return;
  ended->bytes = {};
  ended->done(*ended->answer);
}

void DeviceWire::OnAnswer(uint64_t sequence, const absl::Status& answer) {
  std::optional<Outgoing> ended;
  {
    MutexLock lock(mu_);
    const auto found = announced_.find(sequence);
    if (found == announced_.end() || found->second.answer.has_value()) return;
    found->second.answer = answer;
    ended = TakeIfEnded(sequence);
  }
  if (!ended.has_value()) return;
  ended->bytes = {};
  ended->done(*ended->answer);
}

std::optional<DeviceWire::Outgoing> DeviceWire::TakeIfEnded(uint64_t sequence) {
  const auto found = announced_.find(sequence);
  if (found->second.moving > 0 || !found->second.answer.has_value()) return std::nullopt;
  Outgoing ended = std::move(found->second);
  announced_.erase(found);
  return ended;
}

void DeviceWire::OnAnnounce(const DeviceMessage& message, EdgeCore& core) {
  const FrameId id{message.job, message.layer, message.piece};
  core.OnFrame(id, std::make_shared<Frame>(shared_from_this(), id, message.sequence, message.size));
}

void DeviceWire::Skip(uint64_t sequence) {
  MutexLock lock(mu_);
  if (why_.ok()) Say(DeviceMessage::Kind::kSkip, sequence);
}

void DeviceWire::Accept(uint64_t sequence, Coming coming) {
  Started started;
  absl::Status why;
  {
    MutexLock lock(mu_);
    why = why_;
    // Two frames of one sequence: the peer is broken.
    if (why.ok() && coming_.contains(sequence)) why = absl::UnavailableError("a frame's number is taken");
    if (why.ok()) {
      if (coming.into.size == 0) coming.told = 0;
      coming_.emplace(sequence, std::move(coming)).first->second.moving = true;
      if (comms_.in == nullptr) return accepted_.push_back(sequence);
      StartRecv(sequence, started);
    }
  }
  if (why.ok()) return Watch(std::move(started));
  coming.into = {};
  EndWith(why, FailingFrame(std::move(coming.done)));
}

void DeviceWire::StartRecv(uint64_t sequence, Started& started) {
  Coming& coming = coming_.at(sequence);
  coming.moving = true;
  const auto sum = std::make_shared<uint64_t>(0);
  const Event received = coming.into.size == 0 ? Event() : comms_.in->Recv(coming.into, sum);
  started.emplace_back(received, [wire = shared_from_this(), sequence, sum, asked = MonotonicNow()](
                                     const absl::Status& status) { wire->RecvEnded(sequence, status, asked, *sum); });
  Say(DeviceMessage::Kind::kGo, sequence);
}

void DeviceWire::RecvEnded(uint64_t sequence, const absl::Status& status, absl::Time asked, uint64_t sum) {
  std::optional<Coming> ended;
  absl::Status why = status;
  {
    MutexLock lock(mu_);
    const auto found = coming_.find(sequence);
    Coming& coming = found->second;
    coming.moving = false;
    coming.here = sum;
    coming.time = {asked, asked};
    if (coming.into.size > 0) coming.time = {std::max(asked, free_since_), MonotonicNow()};
    if (coming.into.size > 0) free_since_ = coming.time.last;
    if (why.ok()) why = why_;
    if (!why.ok()) {
      ended = std::move(coming);
      coming_.erase(found);
    }
  }
  if (!ended.has_value()) return Compare(sequence);
  ended->into = {};
  EndWith(why, FailingFrame(std::move(ended->done)));
}

void DeviceWire::OnSum(uint64_t sequence, uint64_t sum) {
  {
    MutexLock lock(mu_);
    const auto found = coming_.find(sequence);
    if (found == coming_.end()) return;
    found->second.told = sum;
  }
  Compare(sequence);
}

void DeviceWire::Compare(uint64_t sequence) {
  Started started;
  std::optional<Coming> ended;
  absl::Status status;
  FrameId id;
  int damaged_times = 0;  // so far; 0: it is whole
  {
    MutexLock lock(mu_);
    const auto found = coming_.find(sequence);
    if (found == coming_.end() || !why_.ok()) return;
    Coming& coming = found->second;
    if (coming.moving || !coming.here.has_value() || !coming.told.has_value()) return;
    const bool damaged = *coming.here != *coming.told;
    id = coming.id;
    if (damaged) damaged_times = ++coming.came;
    if (damaged && coming.came < kFrameAttempts) {
      coming.here.reset();
      StartRecv(sequence, started);
    } else {
      if (damaged) status = DamagedFrame(id, damaged_times);
      ended = std::move(coming);
      coming_.erase(found);
      Say(damaged ? DeviceMessage::Kind::kLost : DeviceMessage::Kind::kTaken, sequence);
    }
  }
  if (damaged_times > 0) {
    LogDamagedFrame(id, damaged_times, peer_.key());
    if (shared_.faults.on_corrupt) shared_.faults.on_corrupt();
  }
  Watch(std::move(started));
  if (!ended.has_value()) return;
  ended->into = {};
  ended->done(status, {ended->time, {FrameSum::Kind::kDevice, *ended->here}});
}

}  // namespace runahead
