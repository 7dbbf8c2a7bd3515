#include "worker/prefill/prefill_loop.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {

PrefillLoop::PrefillLoop(const Model& model, Device& device, Stream& stream, PassMemory memory, ForwardBatch batch,
                         std::unique_ptr<Exchange> exchange)
    : device_(device),
      stream_(stream),
      layers_(model.config().layers),
      pass_(model, device, stream, memory, std::move(batch)),
      exchange_(std::move(exchange)) {}

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
  // attention, output projection, MLP
  RUNAHEAD_RETURN_IF_ERROR(pass_.Attend(layer_, exchange_->View(layer_), [this] { exchange_->Attended(layer_); }));
  exchange_->End(layer_);
  projected_ = false;
  ++layer_;
  return absl::OkStatus();
}

absl::StatusOr<PrefillWait> PrefillLoop::ReceiveAndProject() {
  const std::pair<Event, PrefillWait::For> needs[] = {{exchange_->RunBefore(layer_), PrefillWait::For::kDevice},
                                                      {exchange_->BufferFree(layer_), PrefillWait::For::kLayerBuffer}};
  for (const auto& [event, what] : needs) {
    const auto status = event.status();
    if (!status.has_value()) return PrefillWait{event, what};
    RUNAHEAD_RETURN_IF_ERROR(*status);
  }
  RUNAHEAD_RETURN_IF_ERROR(exchange_->Receive(layer_));  // KV of others, piece by piece
  // Q, K, V of the own part, and X where it is handed off
  RUNAHEAD_RETURN_IF_ERROR(pass_.Project(layer_, exchange_->Own(layer_), exchange_->OwnX(layer_)));
  projected_ = true;
  return PrefillWait{exchange_->Send(layer_), PrefillWait::For::kKv};  // to neighbours, and the hand-off
}

void PrefillLoop::AddWaited(PrefillWait::For what, absl::Time begin, absl::Time end) {
  if (what == PrefillWait::For::kLayerBuffer) ring_stall_s_ += absl::ToDoubleSeconds(end - begin);
  if (what == PrefillWait::For::kKv) exchange_->AddIdle(begin, end);
}

JobTimes PrefillLoop::times() const {
  JobTimes times;
  times.wait_s = exchange_->idle_s();
  times.ring_stall_s = ring_stall_s_;
  times.transfer_s = absl::ToDoubleSeconds(exchange_->transfers().Transfer());
  times.hidden_s = absl::ToDoubleSeconds(exchange_->transfers().Hidden());
  return times;
}

}  // namespace runahead
