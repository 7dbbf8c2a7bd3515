// KV-Runahead's exchange: receive from the predecessor, forward, send.
#pragma once

#include <cstdint>
#include <map>

#include "worker/prefill/exchange.h"

namespace runahead {

// In every layer: receives KV [0, begin) piece by piece into one contiguous buffer while the own part is projected,
// forwards each piece as soon as it is whole, sends its own piece once it is computed, and attends over KV [0, end).
// Where the layer's attention has a window, what crosses an edge is what the receiver or one behind it sees: a piece
// may be its last rows only, and where they see nothing of it there is no frame. Both ends know by bounds and window
// alone. Rows that do not come are not written. The prefix lies in a store: the head asks for a layer's rows while the
// two layers before are computed, where a buffer is free by then, so that neither the bytes nor the way there and back
// keep it waiting. Of the first layer alone, so that nothing delays that one.
class ChainExchange final : public Exchange {
 public:
  using Exchange::Exchange;
  KvLayout Layout() const override;

 private:
  void BeforeOwn(int64_t layer) override;
  void AfterOwn(int64_t layer, const Event& own_ready) override;
  // The head asks the store for what the layer needs of the prefix, unless it has, or needs nothing of it.
  void Ask(int64_t layer);
  // Tokens [begin, end) of an earlier part or of the prefix, as far as they are needed.
  void Take(const FrameId& id, int64_t begin, int64_t end);

  std::map<int64_t, Reception> asked_;  // by layer, of the prefix: not taken yet
};

}  // namespace runahead
