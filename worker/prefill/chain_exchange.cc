#include "worker/prefill/chain_exchange.h"

namespace runahead {

void ChainExchange::BeforeOwn(int64_t layer) {
  if (job().bounds[0] > 0) Take(PrefixFrame(layer), Rows(layer, 0, job().bounds[0]));
  for (int part = 0; part < job().part; ++part) Take(PartFrame(layer, part), PartRows(layer, part));
  Posted(layer, TracePoint::kReceivePosted);
}

void ChainExchange::Take(const FrameId& id, const BufferRef& into) {
  const bool stored = job().part == 0;
  const Reception received =
      stored ? Reception(job().prefix->Load(id.layer, into), nullptr) : job().predecessor->Recv(id, into);
  Expect(id, into, received, stored ? JobCause::kOwn : JobCause::kPeer, job().successor.get());
}

void ChainExchange::AfterOwn(int64_t layer, const Event& own_ready) {
  if (job().successor != nullptr) SendOwn(*job().successor, layer, own_ready);
}

KvLayout ChainExchange::Layout() const {
  return KvLayout::OnePage(job().tokens(), job().end());
}

}  // namespace runahead
