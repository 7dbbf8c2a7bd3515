#include "worker/prefill/chain_exchange.h"

#include <algorithm>

namespace runahead {

void ChainExchange::BeforeOwn(int64_t layer) {
  const std::vector<int64_t>& bounds = job().bounds;
  Ask(layer);
  Take(PrefixFrame(layer), 0, bounds[0]);
  for (int part = 0; part < job().part; ++part) Take(PartFrame(layer, part), bounds[part], bounds[part + 1]);
  Posted(layer, TracePoint::kReceivePosted);
  if (layer > 0 && MayComeAhead(layer + 1)) Ask(layer + 1);
}

void ChainExchange::Ask(int64_t layer) {
  const int64_t first = FirstNeeded(layer, job().part), end = job().bounds[0];
  if (job().part > 0 || first >= end || asked_.contains(layer)) return;
  const BufferRef into = Rows(layer, first, end);
  const Reception asked(job().prefix->Load(layer, first, into), nullptr, nullptr);
  asked_.emplace(layer, Coming(PrefixFrame(layer), into, asked, JobCause::kDecode));
}

void ChainExchange::Take(const FrameId& id, int64_t begin, int64_t end) {
  const int64_t first = std::max(begin, FirstNeeded(id.layer, job().part));
  if (first >= end) return;
  const BufferRef into = Rows(id.layer, first, end);
  const Reception coming = job().part == 0 ? asked_.extract(id.layer).mapped()
                                           : Coming(id, into, job().predecessor->Recv(id, into), JobCause::kPeer);
  Expect(coming);
  if (job().tail()) return;
  const int64_t onward = std::max(first, FirstNeeded(id.layer, job().part + 1));
  if (onward < end) Forward(*job().successor, id, Rows(id.layer, onward, end), coming, /*whole=*/onward == first);
}

void ChainExchange::AfterOwn(int64_t layer, const Event& own_ready) {
  if (job().tail()) return;
  SendOwn(*job().successor, layer, std::max(job().begin(), FirstNeeded(layer, job().part + 1)), own_ready);
}

KvLayout ChainExchange::Layout() const {
  return KvLayout::OnePage(job().tokens(), job().end());
}

}  // namespace runahead
