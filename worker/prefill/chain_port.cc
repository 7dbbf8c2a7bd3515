#include "worker/prefill/chain_port.h"

namespace runahead {

void ChainPort::BeforeProjection(int64_t layer) {
  if (job().bounds[0] > 0) Receive(PrefixFrame(layer), Rows(layer, 0, job().bounds[0]));
  for (int part = 0; part < job().part; ++part) Receive(PartFrame(layer, part), PartRows(layer, part));
  Trace(layer, TracePoint::kReceivePosted);
}

void ChainPort::Receive(const FrameId& id, const BufferRef& into) {
  const bool stored = job().part == 0;
  const Reception received =
      stored ? Reception(job().prefix->Load(id.layer, into), nullptr) : job().predecessor->Recv(id, into);
  Expect(id, into, received, stored ? JobCause::kOwn : JobCause::kPeer, job().successor.get());
}

void ChainPort::Exchange(int64_t layer, const Event& own_ready) {
  if (job().successor != nullptr) SendOwn(*job().successor, layer, own_ready);
}

AttentionSequence ChainPort::View(int64_t layer) const {
  return {0, job().tokens(), job().end(), {{Rows(layer, 0, job().end()), job().end()}}};
}

}  // namespace runahead
