#include <optional>
#include <utility>

#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/task_thread.h"
#include "worker/handoff/message_handoff.h"

namespace runahead {

// What engine callbacks share with the receiver. Slices arrive on the progress thread and are covered on a thread of
// this one's, or on the device's where the store copies what has come: what a device takes long over holds no link up.
class MessageHandoffReceiver::State : public std::enable_shared_from_this<MessageHandoffReceiver::State> {
 public:
  State(MessageEngine& engine, SliceReceiver& receiver)
      : engine_(engine), receiver_(receiver), covering_("arrival", receiver.progress()) {}

  void OnSlice(const Message& message) {
    const std::optional<Slice> slice = UnpackSlice(message.header);
    if (!slice.has_value()) return;  // discarded with the message
    Take({*slice, message.payload});
  }

  // Ends every write: closes the connections and waits for what they held. The handler is gone before.
  void Stop() RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      stopping_ = true;
    }
    engine_.CloseAll(IsOfHandoff);
    {
      MutexLock lock(mu_);
      while (writes_ > 0) ended_.Wait(mu_);
    }
    covering_.Stop();
  }

 private:
  struct Arrival {
    Slice slice;
    std::shared_ptr<MessagePayload> payload;
  };

  void Take(Arrival arrival) {
    const SliceHeader header{arrival.slice, arrival.payload->size(), 0};
    receiver_.Begin(header, [state = shared_from_this(), arrival = std::move(arrival)](
                                const SliceReceiver::Outcome& outcome) { state->Begun(arrival, outcome); });
  }

  void Begun(const Arrival& arrival, const SliceReceiver::Outcome& outcome) RUNAHEAD_EXCLUDES(mu_) {
    if (const auto* verdict = std::get_if<SliceVerdict>(&outcome)) return arrival.payload->Answer(CodeOf(*verdict));
    const SliceReceiver::Write write = std::get<SliceReceiver::Write>(outcome);
    bool stopping = false;
    {
      MutexLock lock(mu_);
      stopping = stopping_;
      if (!stopping) ++writes_;
    }
    if (stopping) return receiver_.Abandon(write);
    Inbound what;
    what.into = write->destination();
    what.seed = SeedOf(arrival.slice);
    what.on_damaged = [state = shared_from_this()](int) { state->receiver_.NoteDamaged(); };
    arrival.payload->Accept(std::move(what),
                            [state = shared_from_this(), arrival, write](const absl::Status& status, const Came&) {
                              state->Arrived(arrival, write, status);
                            });
  }

  void Arrived(const Arrival& arrival, const SliceReceiver::Write& write, const absl::Status& status)
      RUNAHEAD_EXCLUDES(mu_) {
    if (!status.ok()) {  // the sender knows, or is gone
      receiver_.Abandon(write);
      return WriteEnded();
    }
    const auto cover = [state = shared_from_this(), arrival, write] {
      state->receiver_.Commit(write, [state, arrival](SliceVerdict verdict) {
        if (verdict == SliceVerdict::kCorrupt) {
          state->Take(arrival);  // the bytes are needed once more
        } else {
          arrival.payload->Answer(CodeOf(verdict));
        }
        state->WriteEnded();
      });
    };
    // Stop waits for this write before it ends the thread.
    RUNAHEAD_CHECK(covering_.PostWork(static_cast<double>(arrival.payload->size()), cover));
  }

  void WriteEnded() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    --writes_;
    ended_.NotifyAll();
  }

  MessageEngine& engine_;
  SliceReceiver& receiver_;
  Mutex mu_;
  CondVar ended_;
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  int writes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  TaskThread covering_;
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
