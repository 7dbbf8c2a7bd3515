#include "worker/link/staged_edge.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/link/staged_send.h"

namespace runahead {

class StagedEdgeFactory::StagedEdge final : public Edge, public std::enable_shared_from_this<StagedEdge> {
 public:
  StagedEdge(std::shared_ptr<Edge> inner, std::shared_ptr<StagingLane> sending, std::shared_ptr<StagingLane> receiving)
      : inner_(std::move(inner)), sending_(std::move(sending)), receiving_(std::move(receiving)) {}

  Event Send(FrameId id, ConstBufferRef bytes, const Event& after) override {
    return Count(SendStaged(sending_, std::move(bytes), after, [this, id](ConstBufferRef staged, const Event& ready) {
      return inner_->Send(id, std::move(staged), ready);
    }));
  }

  Event Recv(FrameId id, BufferRef into) override RUNAHEAD_EXCLUDES(mu_) {
    if (into.size == 0) return inner_->Recv(id, std::move(into));
    const auto recv = std::make_shared<StagedRecv>();
    const size_t size = into.size;
    recv->id = id;
    recv->into = std::move(into);
    const Event received = Count(recv->source.event());
    absl::Status refused = inner_->Health();
    if (refused.ok()) {
      MutexLock lock(mu_);
      recv->ticket = receiving_->Request(size, [self = shared_from_this(), recv](absl::StatusOr<BufferRef> room) {
        self->OnRoom(recv, std::move(room));
      });
      if (recv->ticket != 0) {
        waiting_[id.job].push_back(recv);
      } else {
        refused = absl::UnavailableError("the link has stopped");
      }
    }
    if (!refused.ok()) recv->Fire(refused);
    return received;
  }

  Event Finish(JobId job) override { return inner_->Finish(job); }

  void Drop(JobId job) override RUNAHEAD_EXCLUDES(mu_) {
    std::vector<std::shared_ptr<StagedRecv>> dropped;
    {
      MutexLock lock(mu_);
      if (const auto found = waiting_.find(job); found != waiting_.end()) {
        dropped = std::move(found->second);
        waiting_.erase(found);
      }
    }
    Forget(dropped, absl::CancelledError(absl::StrCat("job ", job, " was dropped")));
    inner_->Drop(job);
  }

  absl::Status Health() const override { return inner_->Health(); }

  // The inner edge is dead. Returns when everything has fired, and nothing holds a buffer.
  void End() RUNAHEAD_EXCLUDES(mu_) {
    std::vector<std::shared_ptr<StagedRecv>> dead;
    {
      MutexLock lock(mu_);
      for (auto& [job, waiting] : waiting_) dead.insert(dead.end(), waiting.begin(), waiting.end());
      waiting_.clear();
    }
    Forget(dead, absl::UnavailableError("the edge was closed here"));
    dead.clear();
    MutexLock lock(mu_);
    while (under_way_ > 0) ended_.Wait(mu_);
  }

 private:
  struct StagedRecv {
    FrameId id;
    BufferRef into;
    EventSource source;
    uint64_t ticket = 0;

    void Fire(const absl::Status& status) {
      into = {};
      source.Fire(status);
    }
  };

  // Counts an event until it has fired.
  Event Count(const Event& event) RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      ++under_way_;
    }
    event.OnFire([self = shared_from_this()](const absl::Status&) {
      MutexLock lock(self->mu_);
      --self->under_way_;
      self->ended_.NotifyAll();
    });
    return event;
  }

  void Forget(const std::vector<std::shared_ptr<StagedRecv>>& recvs, const absl::Status& why) {
    for (const auto& recv : recvs) {
      receiving_->Cancel(recv->ticket);
      recv->Fire(why);
    }
  }

  void OnRoom(const std::shared_ptr<StagedRecv>& recv, absl::StatusOr<BufferRef> room) RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      const auto job = waiting_.find(recv->id.job);
      if (job == waiting_.end()) return;  // dropped meanwhile
      const auto found = std::find(job->second.begin(), job->second.end(), recv);
      if (found == job->second.end()) return;
      job->second.erase(found);
      if (job->second.empty()) waiting_.erase(job);
    }
    if (!room.ok()) return recv->Fire(room.status());
    const Event received = inner_->Recv(recv->id, *room);
    received.OnFire([self = shared_from_this(), recv, room = *std::move(room)](const absl::Status& status) mutable {
      if (status.ok()) return self->Unload(recv, std::move(room));
      room = {};
      recv->Fire(status);
    });
  }

  void Unload(const std::shared_ptr<StagedRecv>& recv, BufferRef room) {
    receiving_->Copy(std::move(room), recv->into, [recv](const absl::Status& status) { recv->Fire(status); });
  }

  const std::shared_ptr<Edge> inner_;
  const std::shared_ptr<StagingLane> sending_, receiving_;
  Mutex mu_;
  CondVar ended_;
  int under_way_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<JobId, std::vector<std::shared_ptr<StagedRecv>>> waiting_ RUNAHEAD_GUARDED_BY(mu_);  // for room
};

StagedEdgeFactory::StagedEdgeFactory(std::unique_ptr<EdgeFactory> inner, Device& device, size_t staging_bytes)
    : sending_(StagingLane::Create(device, "send", staging_bytes)),
      receiving_(StagingLane::Create(device, "receive", staging_bytes)),
      inner_(std::move(inner)) {}

StagedEdgeFactory::~StagedEdgeFactory() {
  inner_.reset();
  {
    MutexLock lock(mu_);
    for (auto& [incarnation, edge] : edges_) edge->End();
  }
  sending_->Stop();
  receiving_->Stop();
}

absl::StatusOr<std::shared_ptr<Edge>> StagedEdgeFactory::Open(const PeerId& peer) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Edge> inner, inner_->Open(peer));
  MutexLock lock(mu_);
  if (edges_.empty()) {
    sending_->Prepare();
    receiving_->Prepare();
  }
  std::shared_ptr<StagedEdge>& edge = edges_[peer.incarnation];
  if (edge == nullptr) edge = std::make_shared<StagedEdge>(std::move(inner), sending_, receiving_);
  return edge;
}

void StagedEdgeFactory::Close(const PeerId& peer) {
  inner_->Close(peer);
  std::shared_ptr<StagedEdge> edge;
  {
    MutexLock lock(mu_);
    if (const auto found = edges_.find(peer.incarnation); found != edges_.end()) edge = found->second;
  }
  if (edge != nullptr) edge->End();
}

}  // namespace runahead
