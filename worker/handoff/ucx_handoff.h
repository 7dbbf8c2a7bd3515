// Hand-off over UCX. The header is a message whose bytes stay at the sender; the receiver checks it against the store
// and then takes the bytes straight into the store's blocks (one receive into a list of places where a slice spans
// several that do not touch); they are hashed on a thread of their own, and the verdict is a message back.
#pragma once

#include <memory>

#include "worker/handoff/retrying_sender.h"
#include "worker/handoff/slice_receiver.h"
#include "worker/link/ucx_engine.h"

namespace runahead {

// For a RetryingSender. The engine outlives it; one per engine.
std::shared_ptr<SliceTransport> MakeUcxSliceTransport(UcxEngine& engine);

// Takes slices into a store from its construction on. Thread-safe; one thread of its own. Engine and receiver (the
// checks) outlive it; one per engine. Destroying it closes the connections that slices came over and ends every write.
class UcxHandoffReceiver {
 public:
  UcxHandoffReceiver(UcxEngine& engine, SliceReceiver& receiver);
  ~UcxHandoffReceiver();
  UcxHandoffReceiver(const UcxHandoffReceiver&) = delete;
  UcxHandoffReceiver& operator=(const UcxHandoffReceiver&) = delete;

 private:
  class State;
  UcxEngine& engine_;
  const std::shared_ptr<State> state_;
};

}  // namespace runahead
