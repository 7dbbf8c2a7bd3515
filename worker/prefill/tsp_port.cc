#include "worker/prefill/tsp_port.h"

namespace runahead {

void TspPort::Exchange(int64_t layer, const Event& own_ready) {
  const std::shared_ptr<Edge>&before = job().predecessor, &after = job().successor;
  if (before != nullptr) SendOwn(*before, layer, own_ready);
  if (after != nullptr) SendOwn(*after, layer, own_ready);
  for (int part = 0; part < job().part; ++part) Gather(before, after.get(), layer, part, own_ready);
  for (int part = job().part + 1; part < job().parts(); ++part) Gather(after, before.get(), layer, part, own_ready);
}

// A collective begins at each worker when it enters it: a frame that comes earlier waits at its sender.
void TspPort::Gather(const std::shared_ptr<Edge>& from, Edge* onward, int64_t layer, int part, const Event& own_ready) {
  const FrameId id = PartFrame(layer, part);
  const BufferRef into = PartRows(layer, part);
  const EventSource received;
  const auto wire = std::make_shared<WireTime>();
  own_ready.OnFire([from, id, into, received, wire](const absl::Status&) {
    const Reception came = from->Recv(id, into);
    came.OnFire([received, wire, time = came.wire()](const absl::Status& status) {
      *wire = *time;
      received.Fire(status);
    });
  });
  Expect(id, into, {received.event(), wire}, JobCause::kPeer, onward);
}

AttentionSequence TspPort::View(int64_t layer) const {
  const int64_t prompt = job().bounds.back();
  const int64_t dense = job().schedule == Schedule::kTsp ? prompt : 0;
  return {0, job().tokens(), job().end(), {{Rows(layer, 0, prompt), prompt}}, dense};
}

}  // namespace runahead
