#include "worker/prefill/chain_exchange.h"

#include <algorithm>

namespace runahead {

void ChainExchange::BeforeOwn(int64_t layer) {
  const std::vector<int64_t>& bounds = job().bounds;
  Take(PrefixFrame(layer), 0, bounds[0]);
  for (int part = 0; part < job().part; ++part) Take(PartFrame(layer, part), bounds[part], bounds[part + 1]);
  Posted(layer, TracePoint::kReceivePosted);
}

void ChainExchange::Take(const FrameId& id, int64_t begin, int64_t end) {
  const int64_t first = std::max(begin, FirstNeeded(id.layer, job().part));
  if (first >= end) return;
  const BufferRef into = Rows(id.layer, first, end);
  const bool stored = job().part == 0;
  const Reception received = stored ? Reception(job().prefix->Load(id.layer, first, into), nullptr, nullptr)
                                    : job().predecessor->Recv(id, into);
  Expect(id, into, received, stored ? JobCause::kDecode : JobCause::kPeer);
  if (job().tail()) return;
  const int64_t onward = std::max(first, FirstNeeded(id.layer, job().part + 1));
  if (onward < end) Forward(*job().successor, id, Rows(id.layer, onward, end), received, /*whole=*/onward == first);
}

void ChainExchange::AfterOwn(int64_t layer, const Event& own_ready) {
  if (job().tail()) return;
  SendOwn(*job().successor, layer, std::max(job().begin(), FirstNeeded(layer, job().part + 1)), own_ready);
}

KvLayout ChainExchange::Layout() const {
  return KvLayout::OnePage(job().tokens(), job().end());
}

}  // namespace runahead
