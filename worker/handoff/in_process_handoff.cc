#include "worker/handoff/in_process_handoff.h"

#include <cstring>
#include <utility>

#include "kernels/base/mutex.h"
#include "kernels/base/task_thread.h"

namespace runahead {
namespace {

class InProcessTransport final : public SliceTransport {
 public:
  explicit InProcessTransport(SliceReceiver& receiver) : receiver_(receiver) {}

  void Send(const PeerId&, const SliceHeader& header, ConstBufferRef bytes, Done done) override {
    {
      MutexLock lock(mu_);
      if (copying_ != nullptr) {
        return copying_->Post([this, header, bytes = std::move(bytes), done = std::move(done)] {
          receiver_.Begin(header, [this, header, bytes, done](const SliceReceiver::Outcome& outcome) {
            const SliceVerdict verdict = Deliver(header, bytes, outcome);
            if (receiver_.faults() == nullptr) return done(verdict);
            receiver_.faults()->Answer([done, verdict] { done(verdict); });
          });
        });
      }
    }
    done(absl::UnavailableError("the hand-off has stopped"));
  }

  void Stop() override {
    std::unique_ptr<TaskThread> copying;
    MutexLock lock(mu_);
    copying.swap(copying_);
  }

 private:
  SliceVerdict Deliver(const SliceHeader& header, const ConstBufferRef& bytes, const SliceReceiver::Outcome& outcome) {
    if (const auto* verdict = std::get_if<SliceVerdict>(&outcome)) return *verdict;
    const auto& write = std::get<SliceReceiver::Write>(outcome);
    size_t from = 0;
    for (const BufferRef& piece : write->destination()) {
      std::memcpy(piece.data(), bytes.data() + from, piece.size);
      from += piece.size;
    }
    return receiver_.Finish(header, write);
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
