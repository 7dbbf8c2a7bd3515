// KV-Runahead's exchange: receive from the predecessor, forward, send.
#pragma once

#include "worker/prefill/exchange.h"

namespace runahead {

// In every layer: receives KV [0, begin) piece by piece into one contiguous buffer while the own part is projected,
// forwards each piece as soon as it is whole, sends its own piece once it is computed, and attends over KV [0, end).
class ChainExchange final : public Exchange {
 public:
  using Exchange::Exchange;
  KvLayout Layout() const override;

 private:
  void BeforeOwn(int64_t layer) override;
  void AfterOwn(int64_t layer, const Event& own_ready) override;
  void Take(const FrameId& id, const BufferRef& into);
};

}  // namespace runahead
