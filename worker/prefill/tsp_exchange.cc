#include "worker/prefill/tsp_exchange.h"

namespace runahead {

void TspExchange::AfterOwn(int64_t layer, const Event& own_ready) {
  const std::shared_ptr<Edge>&before = job().predecessor, &after = job().successor;
  if (before != nullptr) SendOwn(*before, layer, job().begin(), own_ready);
  if (after != nullptr) SendOwn(*after, layer, job().begin(), own_ready);
  for (int part = 0; part < job().part; ++part) Gather(before, after.get(), layer, part, own_ready);
  for (int part = job().part + 1; part < job().parts(); ++part) Gather(after, before.get(), layer, part, own_ready);
}

// A collective begins at each worker when it enters it: a frame that comes earlier waits at its sender.
void TspExchange::Gather(const std::shared_ptr<Edge>& from, Edge* onward, int64_t layer, int part,
                         const Event& own_ready) {
  const FrameId id = PartFrame(layer, part);
  const BufferRef into = Rows(layer, job().bounds[part], job().bounds[part + 1]);
  const EventSource received;
  const auto wire = std::make_shared<WireTime>();
  const auto sum = std::make_shared<FrameSum>();
  own_ready.OnFire([from, id, into, received, wire, sum](const absl::Status&) {
    const Reception came = from->Recv(id, into);
    came.OnFire([received, wire, sum, time = came.wire(), came_sum = came.sum()](const absl::Status& status) {
      *wire = *time;
      *sum = *came_sum;
      received.Fire(status);
    });
  });
  const Reception reception = Coming(id, into, Reception(received.event(), wire, sum), JobCause::kPeer);
  Expect(reception);
  if (onward != nullptr) Forward(*onward, id, into, reception, /*whole=*/true);
}

KvLayout TspExchange::Layout() const {
  const int64_t dense = job().schedule == Schedule::kTsp && !has_windows() ? job().bounds.back() : 0;
  return KvLayout::OnePage(job().tokens(), job().end(), dense);
}

}  // namespace runahead
