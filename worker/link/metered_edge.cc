#include "worker/link/metered_edge.h"

#include <utility>

#include "kernels/base/monotonic.h"

namespace runahead {
namespace {

class MeteredEdge : public Edge {
 public:
  MeteredEdge(std::shared_ptr<Edge> edge, std::shared_ptr<LinkMetrics> metrics)
      : edge_(std::move(edge)), metrics_(std::move(metrics)) {}

  // Counted from the moment when the bytes are there to be sent.
  Event SendSummed(FrameId id, ConstBufferRef bytes, const Event& after, std::shared_ptr<const FrameSum> sum) override {
    auto ready = std::make_shared<absl::Time>();
    after.OnFire([ready](const absl::Status&) { *ready = MonotonicNow(); });
    const Event sent = edge_->SendSummed(id, bytes, after, std::move(sum));
    sent.OnFire([metrics = metrics_, ready, size = bytes.size](const absl::Status& status) {
      if (status.ok()) metrics->ObserveSend(static_cast<int64_t>(size), MonotonicNow() - *ready);
    });
    return sent;
  }

  Reception Recv(FrameId id, BufferRef into) override {
    const size_t size = into.size;
    Reception received = edge_->Recv(id, std::move(into));
    received.OnFire([metrics = metrics_, wire = received.wire(), size](const absl::Status& status) {
      if (status.ok()) metrics->ObserveReceive(static_cast<int64_t>(size), wire->last - wire->first);
    });
    return received;
  }

  Event Finish(JobId job) override { return edge_->Finish(job); }
  void Drop(JobId job) override { edge_->Drop(job); }
  absl::Status Health() const override { return edge_->Health(); }
  bool Opened() const override { return edge_->Opened(); }

 private:
  const std::shared_ptr<Edge> edge_;
  const std::shared_ptr<LinkMetrics> metrics_;
};

}  // namespace

std::shared_ptr<Edge> MeterEdge(std::shared_ptr<Edge> edge, std::shared_ptr<LinkMetrics> metrics) {
  return std::make_shared<MeteredEdge>(std::move(edge), std::move(metrics));
}

}  // namespace runahead
