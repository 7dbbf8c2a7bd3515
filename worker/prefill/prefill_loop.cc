#include "worker/prefill/prefill_loop.h"

#include <optional>
#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {

PrefillLoop::PrefillLoop(const Model& model, Device& device, Stream& stream, PassMemory memory, ForwardBatch batch,
                         std::vector<std::unique_ptr<Exchange>> exchanges)
    : device_(device),
      stream_(stream),
      layers_(model.config().layers),
      pass_(model, device, stream, memory, std::move(batch)),
      exchanges_(std::move(exchanges)) {}

absl::StatusOr<PrefillWait> PrefillLoop::Step() {
  RUNAHEAD_CHECK(!done_);
  if (!begun_) RUNAHEAD_RETURN_IF_ERROR(pass_.Begin());
  begun_ = true;
  if (projected_) RUNAHEAD_RETURN_IF_ERROR(AttendAndFinish());
  if (layer_ < layers_) return ReceiveAndProject();
  RUNAHEAD_ASSIGN_OR_RETURN(logits_, pass_.Logits());
  done_ = true;
  return PrefillWait{device_.Record(stream_), PrefillWait::For::kDevice};
}

// KV [0, e) of the layer is here, or of the whole prompt, as the schedule wants it.
absl::Status PrefillLoop::AttendAndFinish() {
  BufferRef kv;
  ForJobs([&](Exchange& job) { kv = job.View(layer_); });
  const auto attended = [this] { ForJobs([this](Exchange& job) { job.Attended(layer_); }); };
  RUNAHEAD_RETURN_IF_ERROR(pass_.Attend(layer_, kv, attended));  // attention, output projection, MLP
  ForJobs([this](Exchange& job) { job.End(layer_); });
  projected_ = false;
  ++layer_;
  return absl::OkStatus();
}

absl::StatusOr<PrefillWait> PrefillLoop::ReceiveAndProject() {
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<PrefillWait> wait, WaitBefore());
  if (wait.has_value()) return *std::move(wait);
  absl::Status received;
  ForJobs([&](Exchange& job) { received.Update(job.Receive(layer_)); });  // KV of others, piece by piece
  RUNAHEAD_RETURN_IF_ERROR(received);
  BufferRef kv;
  XRows x;
  ForJobs([&](Exchange& job) {
    kv = job.Own(layer_);
    x = job.OwnX(layer_);
  });
  RUNAHEAD_RETURN_IF_ERROR(pass_.Project(layer_, kv, x));  // Q, K, V of the own part, and X where it is handed off
  projected_ = true;
  std::vector<Event> all_here;
  ForJobs([&](Exchange& job) { all_here.push_back(job.Send(layer_)); });  // to neighbours, and the hand-off
  return PrefillWait{WhenAll(all_here), PrefillWait::For::kKv};
}

// What has to be over before the layer begins; nothing where all is.
absl::StatusOr<std::optional<PrefillWait>> PrefillLoop::WaitBefore() const {
  for (const auto& job : exchanges_) {
    if (job == nullptr) continue;
    const PrefillWait needs[] = {{job->RunBefore(layer_), PrefillWait::For::kDevice},
                                 {job->BufferFree(layer_), PrefillWait::For::kLayerBuffer}};
    for (const PrefillWait& need : needs) {
      const auto status = need.event.status();
      if (!status.has_value()) return need;
      RUNAHEAD_RETURN_IF_ERROR(*status);
    }
  }
  return std::nullopt;
}

void PrefillLoop::AddWaited(PrefillWait::For what, absl::Time begin, absl::Time end) {
  if (what == PrefillWait::For::kLayerBuffer) ring_stall_s_ += absl::ToDoubleSeconds(end - begin);
  if (what != PrefillWait::For::kKv) return;
  ForJobs([&](Exchange& job) { job.AddIdle(begin, end); });
}

JobTimes PrefillLoop::times(size_t job) const {
  const Exchange& exchange = *exchanges_[job];
  JobTimes times;
  times.wait_s = exchange.idle_s();
  times.ring_stall_s = ring_stall_s_;
  times.transfer_s = absl::ToDoubleSeconds(exchange.transfers().Transfer());
  times.hidden_s = absl::ToDoubleSeconds(exchange.transfers().Hidden());
  return times;
}

}  // namespace runahead
