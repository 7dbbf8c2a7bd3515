#include "worker/handoff/in_process_handoff.h"

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <variant>

#include "server/base/task_thread.h"
#include "worker/handoff/slice.h"

namespace runahead {
namespace {

class InProcessTransport final : public SliceTransport {
 public:
  InProcessTransport(SliceReceiver& receiver, std::shared_ptr<ProgressMeter> progress)
      : receiver_(receiver), copying_("copies", std::move(progress)) {}

  void Send(const PeerId&, const Slice& slice, Outbound bytes, Done done) override {
    const auto push =
        std::make_shared<Pending>(Pending{{slice, bytes.bytes.size, 0}, std::move(bytes), std::move(done)});
    Post(push, [this, push] {
      const Outbound& from = push->bytes;
      if (from.lane == nullptr && !from.sum.has_value()) push->header.sum = SumPieces(from.seed, {from.bytes});
      if (from.sum.has_value()) push->header.sum = *from.sum;
      Take(push);
    });
  }

  void Stop() override { copying_.Stop(); }

 private:
  struct Pending {
    SliceHeader header;
    Outbound bytes;
    Done done;
    int attempt = 1;
  };
  using Push = std::shared_ptr<Pending>;

  // Where it has stopped, `task`, which is of `push`, never runs.
  bool Post(const Push& push, std::function<void()> task) {
    if (copying_.PostWork(static_cast<double>(push->header.bytes), std::move(task))) return true;
    End(push, absl::UnavailableError("the hand-off has stopped"));
    return false;
  }

  static void End(const Push& push, absl::Status status) {
    push->bytes = {};
    push->done(std::move(status));
  }

  // On the copying thread. What has to wait comes back to it, for the thread that ends the wait has no time for a copy.
  void Take(const Push& push) {
    const auto copying = std::this_thread::get_id();
    receiver_.Begin(push->header, [this, push, copying](const SliceReceiver::Outcome& outcome) {
      if (const auto* verdict = std::get_if<SliceVerdict>(&outcome)) return Answer(push, *verdict);
      const auto& write = std::get<SliceReceiver::Write>(outcome);
      if (std::this_thread::get_id() == copying) return Deliver(push, write);
      if (!Post(push, [this, push, write] { Deliver(push, write); })) receiver_.Abandon(write);
    });
  }

  void Deliver(const Push& push, const SliceReceiver::Write& write) {
    if (push->bytes.lane != nullptr) return DeliverFromDevice(push, write);
    size_t from = 0;
    for (const BufferRef& piece : write->destination()) {
      std::memcpy(piece.data(), push->bytes.bytes.data() + from, piece.size);
      from += piece.size;
    }
    receiver_.Finish(push->header, write, [this, push](SliceVerdict verdict) { Answer(push, verdict); });
  }

  // Straight into the store. There is no sum to compare with but one that is known.
  void DeliverFromDevice(const Push& push, const SliceReceiver::Write& write) {
    const auto copied = std::make_shared<absl::Status>();
    size_t from = 0;
    for (const BufferRef& piece : write->destination()) {
      const bool last = from + piece.size == push->header.bytes;
      push->bytes.lane->Copy(push->bytes.bytes.Slice(from, piece.size), piece,
                             [this, push, write, copied, last](const absl::Status& status) {
                               if (copied->ok()) *copied = status;
                               if (last) Copied(push, write, *copied);  // they end in their order
                             });
      from += piece.size;
    }
  }

  // On the thread of the lane's stream.
  void Copied(const Push& push, const SliceReceiver::Write& write, const absl::Status& status) {
    const bool posted = Post(push, [this, push, write, status] {
      const auto answer = [this, push](SliceVerdict verdict) { Answer(push, verdict); };
      if (!status.ok()) {
        receiver_.Abandon(write);
        answer(SliceVerdict::kCorrupt);
      } else if (push->bytes.sum.has_value()) {
        receiver_.Finish(push->header, write, answer);
      } else {
        receiver_.Commit(write, answer);
      }
    });
    if (!posted) receiver_.Abandon(write);
  }

  void Answer(const Push& push, SliceVerdict verdict) {
    if (verdict != SliceVerdict::kCorrupt || push->attempt >= kTransferAttempts) {
      return End(push, absl::Status(CodeOf(verdict), "the store did not take the slice"));
    }
    ++push->attempt;
    if (push->bytes.on_again) push->bytes.on_again();
    Post(push, [this, push] { Take(push); });
  }

  SliceReceiver& receiver_;
  TaskThread copying_;
};

}  // namespace

std::shared_ptr<SliceTransport> MakeInProcessTransport(SliceReceiver& receiver,
                                                       std::shared_ptr<ProgressMeter> progress) {
  return std::make_shared<InProcessTransport>(receiver, std::move(progress));
}

}  // namespace runahead
