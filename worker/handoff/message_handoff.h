// Hand-off between processes, over a message engine. The header is a message whose bytes stay at the sender; the
// receiver checks it against the store and then takes the bytes straight into the store's blocks (one receive into a
// list of places where a slice spans several that do not touch); they are hashed on a thread of their own, and the
// verdict is a message back.
#pragma once

#include <memory>

#include "worker/handoff/retrying_sender.h"
#include "worker/handoff/slice_receiver.h"
#include "worker/link/message_engine.h"

namespace runahead {

// For a RetryingSender. The engine outlives it; one per engine.
std::shared_ptr<SliceTransport> MakeMessageSliceTransport(MessageEngine& engine);

// Takes slices into a store from its construction on. Thread-safe; one thread of its own. Engine and receiver (the
// checks) outlive it; one per engine. Destroying it closes the connections that slices came over and ends every write.
class MessageHandoffReceiver {
 public:
  MessageHandoffReceiver(MessageEngine& engine, SliceReceiver& receiver);
  ~MessageHandoffReceiver();
  MessageHandoffReceiver(const MessageHandoffReceiver&) = delete;
  MessageHandoffReceiver& operator=(const MessageHandoffReceiver&) = delete;

 private:
  class State;
  MessageEngine& engine_;
  const std::shared_ptr<State> state_;
};

}  // namespace runahead
