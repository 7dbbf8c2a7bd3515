// Communicators between two GPUs over NCCL: what is called when, deadlines, errors and the end.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "kernels/cuda/nccl_api.h"
#include "kernels/cuda/peer_comm.h"

namespace runahead {

struct NcclTimes {
  absl::Duration ready = absl::Seconds(30);    // for the peer to join, and the first byte to pass
  absl::Duration enqueue = absl::Seconds(10);  // for a transfer to be put into the stream
  absl::Duration move = absl::Seconds(30);     // for the first in the stream to pass
  absl::Duration end = absl::Seconds(2);       // for aborted kernels to end
  // For NCCL to give a communicator up. Where it does not, the communicator and some MiB of the GPU stay with NCCL.
  absl::Duration leave = absl::Seconds(10);
  // The same where a transfer may still use its buffer: after this the process ends.
  absl::Duration abort = absl::Seconds(60);
};

// One communicator. A thread of its own does all calls of NCCL and CUDA in turn, but the last, and fires the events.
class NcclPeerComm final : public PeerComm {
 public:
  NcclPeerComm(std::shared_ptr<NcclApi> api, std::string id, PeerRank rank, const NcclTimes& times);
  ~NcclPeerComm() override;

  Event ready() const override { return ready_.event(); }
  Event Send(ConstBufferRef bytes, std::shared_ptr<uint64_t> sum) override {
    return Enqueue(PeerRank::kSender, {std::move(bytes), EventSource(), nullptr, std::move(sum), nullptr});
  }
  Event Recv(BufferRef into, std::shared_ptr<uint64_t> sum) override {
    return Enqueue(PeerRank::kReceiver, {std::move(into), EventSource(), nullptr, std::move(sum), nullptr});
  }
  void Stop() override RUNAHEAD_EXCLUDES(mu_);
  absl::Status Health() const override RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Transfer {
    BufferRef ref;
    EventSource source;
    NcclApi::Mark mark = nullptr;
    std::shared_ptr<uint64_t> sum;       // null: not wanted
    const uint64_t* partials = nullptr;  // of it, when the mark has passed
  };

  Event Enqueue(PeerRank as, Transfer transfer) RUNAHEAD_EXCLUDES(mu_);
  // All below are of its own thread.
  void Run();
  absl::Status Establish();
  absl::Status Serve();
  absl::Status Submit(Transfer transfer);
  // Puts the sum of the transfer's bytes into the stream, where it is wanted.
  absl::Status Sum(Transfer& transfer);
  bool FirePassed();
  absl::Status Start(void* memory, size_t size, absl::Time deadline);
  absl::Status AwaitSettled(absl::Time deadline, const char* what);
  void End(absl::Status why);
  // Fires the events of what is in the stream once no kernel touches its buffer; `aborted`: all is told to end, and
  // gone. False when one may touch it still, for which the process ends soon.
  bool FireAborted(const absl::Status& why, const Event& aborted);
  void LeaveAlone(std::thread aborting, const absl::Status& why);
  // At most times_.end.
  bool AwaitPassed(NcclApi::Mark mark);
  bool AwaitStream();
  // Sleeps, but not over its end: then UNAVAILABLE.
  absl::Status Pause(absl::Duration time) RUNAHEAD_EXCLUDES(mu_);

  const std::shared_ptr<NcclApi> api_;
  const std::string id_;
  const PeerRank rank_;
  const NcclTimes times_;
  const EventSource ready_;

  mutable Mutex mu_;
  CondVar changed_;
  bool ending_ RUNAHEAD_GUARDED_BY(mu_) = false;
  absl::Status health_ RUNAHEAD_GUARDED_BY(mu_);
  std::deque<Transfer> queue_ RUNAHEAD_GUARDED_BY(mu_);  // not in the stream yet

  NcclApi::Comm comm_ = nullptr;
  NcclApi::Stream stream_ = nullptr;
  std::shared_ptr<Buffer> scratch_;
  std::shared_ptr<Buffer> sums_;  // of transfers in the stream, in turn
  size_t next_sum_ = 0;
  std::deque<Transfer> moving_;  // in the stream, in its order
  absl::Time first_since_;       // since when the first of them has been the first
  std::thread thread_;
};

class NcclPeerCommFactory final : public PeerCommFactory {
 public:
  // `host`: what tells this host from others.
  NcclPeerCommFactory(std::unique_ptr<NcclApi> api, const std::string& host, const NcclTimes& times = {});

  const std::string& identity() const override { return identity_; }
  absl::StatusOr<std::string> NewId() override { return api_->NewId(); }
  absl::StatusOr<std::unique_ptr<PeerComm>> Open(const std::string& id, PeerRank rank) override;

 private:
  const std::shared_ptr<NcclApi> api_;
  const std::string identity_;
  const NcclTimes times_;
};

}  // namespace runahead
