#include "worker/link/paced_edge.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/thread_name.h"

namespace runahead {
// Fires events at their time, on its own thread.
class PacedEdgeFactory::Timer {
 public:
  explicit Timer(Clock& clock) : clock_(clock), thread_([this] { Run(); }) {}

  Clock& clock() const { return clock_; }
  void FireAt(absl::Time when, const EventSource& source) RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      if (!stopped_) {
        due_.emplace(when, source);
        changed_.NotifyAll();
        return;
      }
    }
    source.Fire(absl::CancelledError("the link has stopped"));
  }
  // Once, before the end, and not on the timer's thread. What waits fires CANCELLED.
  void Stop() RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      stopped_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

 private:
  void Run() RUNAHEAD_EXCLUDES(mu_) {
    NameThread("pacing");
    for (bool going = true; going;) {
      std::vector<EventSource> fire;
      {
        MutexLock lock(mu_);
        while (!stopped_ && (due_.empty() || due_.begin()->first > clock_.Now())) {
          clock_.WaitUntil(mu_, changed_, due_.empty() ? absl::InfiniteFuture() : due_.begin()->first);
        }
        going = !stopped_;
        while (!due_.empty() && (stopped_ || due_.begin()->first <= clock_.Now())) {
          fire.push_back(due_.begin()->second);
          due_.erase(due_.begin());
        }
      }
      for (const EventSource& source : fire) {
        source.Fire(going ? absl::OkStatus() : absl::CancelledError("the link has stopped"));
      }
    }
  }

  Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::multimap<absl::Time, EventSource> due_ RUNAHEAD_GUARDED_BY(mu_);
  std::thread thread_;
};

class PacedEdgeFactory::PacedEdge final : public Edge {
 public:
  PacedEdge(std::shared_ptr<Edge> inner, double bytes_per_second, const FrameNoise& noise, std::shared_ptr<Timer> timer)
      : inner_(std::move(inner)), link_(std::make_shared<Link>(bytes_per_second, noise, std::move(timer))) {}

  Event SendSummed(FrameId id, ConstBufferRef bytes, const Event& after, std::shared_ptr<const FrameSum> sum) override {
    EventSource passed;
    const Event sent = inner_->SendSummed(id, bytes, passed.event(), std::move(sum));
    after.OnFire([link = link_, passed, size = bytes.size](const absl::Status& status) {
      if (!status.ok()) {
        passed.Fire(status);
        return;
      }
      link->timer->FireAt(link->Occupy(size), passed);
    });
    return sent;
  }
  // The peer announces a frame when its last byte would have come: the link had it for so long before.
  Reception Recv(FrameId id, BufferRef into) override {
    const absl::Duration paced = absl::Seconds(static_cast<double>(into.size) / link_->bytes_per_second);
    const Reception received = inner_->Recv(id, std::move(into));
    const EventSource passed;
    const auto wire = std::make_shared<WireTime>();
    received.OnFire([passed, wire, came = received.wire(), paced](const absl::Status& status) {
      if (status.ok()) *wire = {std::min(came->first, came->last - paced), came->last};
      passed.Fire(status);
    });
    return {passed.event(), wire, received.sum()};
  }
  Event Finish(JobId job) override { return inner_->Finish(job); }
  void Drop(JobId job) override { inner_->Drop(job); }
  absl::Status Health() const override { return inner_->Health(); }
  bool Opened() const override { return inner_->Opened(); }
  // Whether it is this one that is paced: once closed, a peer's edge may be another.
  bool IsOf(const std::shared_ptr<Edge>& inner) const { return inner_ == inner; }

 private:
  struct Link {
    Link(double rate, const FrameNoise& frame_noise, std::shared_ptr<Timer> timer)
        : bytes_per_second(rate), timer(std::move(timer)), noise(frame_noise) {}
    // When `bytes` that start now, or when the link is free, have passed.
    absl::Time Occupy(size_t bytes) RUNAHEAD_EXCLUDES(mu) {
      MutexLock lock(mu);
      const double seconds = static_cast<double>(bytes) / bytes_per_second * noise.Next();
      free_at = std::max(free_at, timer->clock().Now()) + absl::Seconds(seconds);
      return free_at;
    }
    const double bytes_per_second;
    const std::shared_ptr<Timer> timer;
    Mutex mu;
    FrameNoise noise RUNAHEAD_GUARDED_BY(mu);
    absl::Time free_at RUNAHEAD_GUARDED_BY(mu) = absl::InfinitePast();
  };

  const std::shared_ptr<Edge> inner_;
  const std::shared_ptr<Link> link_;
};

PacedEdgeFactory::PacedEdgeFactory(std::unique_ptr<EdgeFactory> inner, double gigabits_per_second, Clock& clock,
                                   const LinkNoise& noise)
    : bytes_per_second_(gigabits_per_second * 1e9 / 8),
      noise_(noise),
      timer_(std::make_shared<Timer>(clock)),
      inner_(std::move(inner)) {}

PacedEdgeFactory::~PacedEdgeFactory() {
  timer_->Stop();
}

absl::StatusOr<std::shared_ptr<Edge>> PacedEdgeFactory::Open(const PeerId& peer) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Edge> inner, inner_->Open(peer));
  MutexLock lock(mu_);
  std::shared_ptr<PacedEdge>& edge = edges_[peer.key()];
  if (edge == nullptr || !edge->IsOf(inner)) {
    const FrameNoise noise(noise_, opened_++);
    edge = std::make_shared<PacedEdge>(std::move(inner), bytes_per_second_, noise, timer_);
  }
  return edge;
}

void PacedEdgeFactory::Close(const PeerId& peer) {
  inner_->Close(peer);
  std::shared_ptr<Edge> closed;  // destroyed without the lock
  MutexLock lock(mu_);
  const auto found = edges_.find(peer.key());
  if (found == edges_.end()) return;
  closed = std::move(found->second);
  edges_.erase(found);
}

}  // namespace runahead
