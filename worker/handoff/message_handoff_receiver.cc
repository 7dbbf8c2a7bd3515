#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/mutex.h"
#include "kernels/base/task_thread.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/message_slice_wire.h"

namespace runahead {

// What engine callbacks share with the receiver. Arrives on the progress thread, finishes on the
// hashing thread, or on the device's where the store copies what has come.
class MessageHandoffReceiver::State : public std::enable_shared_from_this<MessageHandoffReceiver::State> {
 public:
  State(MessageEngine& engine, SliceReceiver& receiver) : engine_(engine), receiver_(receiver) {}

  void OnSlice(const Message& message) RUNAHEAD_EXCLUDES(mu_) {
    std::optional<ReceivedSlice> received = UnpackSlice(message.header);
    if (!received.has_value()) return;  // discarded with the message
    const PeerKey& from = message.from;
    const PeerId sender{received->sender_address, from.incarnation, {}, from.epoch, from.generation};
    Connect(sender);
    if (received->header.bytes != message.payload->size()) {
      return Answer({sender, received->request, received->header, nullptr}, receiver_.Told(SliceVerdict::kBadRange));
    }
    Take({sender, received->request, received->header, message.payload});
  }

  // Ends every write: closes the connections and waits for what they held. The handler is gone before.
  void Stop() RUNAHEAD_EXCLUDES(mu_) {
    std::vector<PeerId> senders;
    {
      MutexLock lock(mu_);
      stopping_ = true;
      for (const auto& [key, sender] : senders_) senders.push_back(sender);
    }
    for (const PeerId& sender : senders) engine_.Close(sender.key());
    std::unique_ptr<TaskThread> hashing;
    {
      MutexLock lock(mu_);
      while (writes_ > 0) ended_.Wait(mu_);
      hashing = std::move(hashing_);
    }
  }

 private:
  struct Arrival {
    PeerId sender;
    uint64_t request = 0;
    SliceHeader header;
    std::shared_ptr<MessagePayload> payload;
  };

  // So that the sender's death ends its transfers.
  void Connect(const PeerId& sender) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (!senders_.emplace(sender.key(), sender).second) return;
    engine_.Connect(sender, [state = shared_from_this(), key = sender.key()](const absl::Status&) {
      MutexLock lock(state->mu_);
      state->senders_.erase(key);
    });
  }

  void Take(Arrival arrival) {
    const SliceHeader header = arrival.header;
    receiver_.Begin(header, [state = shared_from_this(), arrival = std::move(arrival)](
                                const SliceReceiver::Outcome& outcome) { state->Begun(arrival, outcome); });
  }

  void Begun(const Arrival& arrival, const SliceReceiver::Outcome& outcome) RUNAHEAD_EXCLUDES(mu_) {
    if (const auto* verdict = std::get_if<SliceVerdict>(&outcome)) return Answer(arrival, *verdict);
    const SliceReceiver::Write write = std::get<SliceReceiver::Write>(outcome);
    bool stopping = false;
    {
      MutexLock lock(mu_);
      stopping = stopping_;
      if (!stopping) ++writes_;
    }
    if (stopping) return receiver_.Abandon(write);
    arrival.payload->Accept(write->destination(),
                            [state = shared_from_this(), arrival, write](const absl::Status& status, WireTime) {
                              state->Arrived(arrival, write, status);
                            });
  }

  void Arrived(const Arrival& arrival, const SliceReceiver::Write& write, const absl::Status& status)
      RUNAHEAD_EXCLUDES(mu_) {
    if (!status.ok()) {  // nobody is left to answer
      receiver_.Abandon(write);
      return WriteEnded();
    }
    MutexLock lock(mu_);
    // The thread lives: Stop waits for this write before it takes it away.
    ProgressMeter* const progress = receiver_.progress();
    if (progress != nullptr) progress->Begin(static_cast<double>(arrival.header.bytes));
    hashing_->Post([state = shared_from_this(), arrival, write, progress] {
      state->receiver_.Finish(arrival.header, write, [state, arrival](SliceVerdict verdict) {
        state->Answer(arrival, verdict);
        state->WriteEnded();
      });
      if (progress != nullptr) progress->End();
    });
  }

  void WriteEnded() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    --writes_;
    ended_.NotifyAll();
  }

  void Answer(const Arrival& arrival, SliceVerdict verdict) RUNAHEAD_EXCLUDES(mu_) {
    const VerdictWire wire{arrival.request, static_cast<uint64_t>(verdict)};
    auto answer = [engine = &engine_, sender = arrival.sender, wire] {
      engine->Send(sender, MessageKind::kVerdict, std::string(reinterpret_cast<const char*>(&wire), sizeof(wire)),
                   ConstBufferRef(), [](const absl::Status&) {});
    };
    {
      MutexLock lock(mu_);
      if (stopping_) return;  // the connections are closed
    }
    if (receiver_.faults() == nullptr) return answer();
    receiver_.faults()->Answer(std::move(answer));
  }

  MessageEngine& engine_;
  SliceReceiver& receiver_;
  Mutex mu_;
  CondVar ended_;
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  int writes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<PeerKey, PeerId> senders_ RUNAHEAD_GUARDED_BY(mu_);  // connected
  std::unique_ptr<TaskThread> hashing_ RUNAHEAD_GUARDED_BY(mu_) = std::make_unique<TaskThread>();
};

MessageHandoffReceiver::MessageHandoffReceiver(MessageEngine& engine, SliceReceiver& receiver)
    : engine_(engine), state_(std::make_shared<State>(engine, receiver)) {
  engine_.SetHandler(MessageKind::kSlice, [state = state_](const Message& message) { state->OnSlice(message); });
}

MessageHandoffReceiver::~MessageHandoffReceiver() {
  engine_.SetHandler(MessageKind::kSlice, nullptr);
  state_->Stop();
}

}  // namespace runahead
