#include "worker/handoff/in_process_handoff.h"

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <variant>

#include "kernels/base/mutex.h"
#include "kernels/base/task_thread.h"

namespace runahead {
namespace {

class InProcessTransport final : public SliceTransport {
 public:
  explicit InProcessTransport(SliceReceiver& receiver) : receiver_(receiver) {}

  void Send(const PeerId&, const SliceHeader& header, ConstBufferRef bytes, Done done) override {
    auto push = std::make_shared<const Pending>(Pending{header, std::move(bytes), std::move(done)});
    if (!Post([this, push] { Take(push); })) push->done(absl::UnavailableError("the hand-off has stopped"));
  }

  void Stop() override {
    std::unique_ptr<TaskThread> copying;
    MutexLock lock(mu_);
    copying.swap(copying_);
  }

 private:
  struct Pending {
    SliceHeader header;
    ConstBufferRef bytes;
    Done done;
  };
  using Push = std::shared_ptr<const Pending>;

  // False after Stop: then `task` never runs.
  bool Post(std::function<void()> task) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (copying_ == nullptr) return false;
    copying_->Post(std::move(task));
    return true;
  }

  // On the copying thread. What has to wait comes back to it, for the thread that ends the wait has no time for a copy.
  void Take(const Push& push) {
    const auto copying = std::this_thread::get_id();
    receiver_.Begin(push->header, [this, push, copying](const SliceReceiver::Outcome& outcome) {
      if (const auto* verdict = std::get_if<SliceVerdict>(&outcome)) return Answer(push, *verdict);
      const auto& write = std::get<SliceReceiver::Write>(outcome);
      if (std::this_thread::get_id() == copying) return Deliver(push, write);
      if (Post([this, push, write] { Deliver(push, write); })) return;
      receiver_.Abandon(write);
      push->done(absl::UnavailableError("the hand-off has stopped"));
    });
  }

  void Deliver(const Push& push, const SliceReceiver::Write& write) {
    size_t from = 0;
    for (const BufferRef& piece : write->destination()) {
      std::memcpy(piece.data(), push->bytes.data() + from, piece.size);
      from += piece.size;
    }
    receiver_.Finish(push->header, write, [this, push](SliceVerdict verdict) { Answer(push, verdict); });
  }

  void Answer(const Push& push, SliceVerdict verdict) {
    if (receiver_.faults() == nullptr) return push->done(verdict);
    receiver_.faults()->Answer([push, verdict] { push->done(verdict); });
  }

  SliceReceiver& receiver_;
  Mutex mu_;
  std::unique_ptr<TaskThread> copying_ RUNAHEAD_GUARDED_BY(mu_) = std::make_unique<TaskThread>();
};

}  // namespace

std::shared_ptr<SliceTransport> MakeInProcessTransport(SliceReceiver& receiver) {
  return std::make_shared<InProcessTransport>(receiver);
}

}  // namespace runahead
