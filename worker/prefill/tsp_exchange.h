// Tensor/sequence parallelism's exchange: the baseline that KV-Runahead is compared with.
#pragma once

#include <memory>

#include "worker/prefill/exchange.h"

namespace runahead {

// In every layer an all-gather of K and V along the line: once the own part is there, it goes to both neighbours, and
// what comes from one goes on to the other. Nobody attends before it has the whole prompt's KV, so all workers of the
// job keep step, layer by layer. Attention is over the dense rectangle, masked (kTsp), or skips what causality hides
// (kTspCausal). Windows change nothing of what goes to whom; no device masks them in a dense rectangle, so a model that
// has some is computed as kTspCausal.
class TspExchange final : public Exchange {
 public:
  using Exchange::Exchange;
  KvLayout Layout() const override;

 private:
  void BeforeOwn(int64_t) override {}
  void AfterOwn(int64_t layer, const Event& own_ready) override;
  // Takes part `part` from an edge once `own_ready` has fired, and passes it on.
  void Gather(const std::shared_ptr<Edge>& from, Edge* onward, int64_t layer, int part, const Event& own_ready);
};

}  // namespace runahead
