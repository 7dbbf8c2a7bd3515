// KV-Runahead's side of the forward pass: receive from the predecessor, forward, send.
#pragma once

#include "worker/prefill/prefill_port.h"

namespace runahead {

// In every layer: receives KV [0, begin) piece by piece into one contiguous buffer while the own part is projected,
// forwards each piece as soon as it is whole, sends its own piece once it is computed, and attends over KV [0, end).
class ChainPort final : public PrefillPort {
 public:
  using PrefillPort::PrefillPort;

 private:
  void BeforeProjection(int64_t layer) override;
  void Exchange(int64_t layer, const Event& own_ready) override;
  AttentionSequence View(int64_t layer) const override;
  void Receive(const FrameId& id, const BufferRef& into);
};

}  // namespace runahead
