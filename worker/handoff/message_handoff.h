// Hand-off between processes: each slice is a transfer of an engine, whose header says what it is. The receiver checks
// that against the store and then takes the bytes straight into the store's blocks (one receive into a list of places
// where a slice spans several that do not touch). Its answer to the transfer is the verdict.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "worker/handoff/slice_receiver.h"
#include "worker/handoff/slice_sender.h"
#include "worker/link/message_engine.h"

namespace runahead {

// A slice's header. Little-endian, as all hosts that we build for are.
struct SliceWire {
  uint64_t lease_incarnation = 0;
  uint64_t lease_number = 0;
  uint64_t lease_epoch = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int32_t layer = 0;
  uint8_t kind = 0;
  uint8_t form = 0;
  uint16_t reserved = 0;
};

std::string PackSlice(const Slice& slice);
// Nothing when it is no such header. Values out of their range become ones that fit no store.
std::optional<Slice> UnpackSlice(std::string_view header);

// Whether a connection is hand-off's, rather than an edge's.
inline bool IsOfHandoff(const PeerKey& key) {
  return key.generation == 0;
}

// For a SliceSender. The engine outlives it. Its Stop closes hand-off's connections. `kind` says who takes the slices
// there: a store, or who asked for rows of a prefix.
std::shared_ptr<SliceTransport> MakeMessageSliceTransport(MessageEngine& engine,
                                                          MessageKind kind = MessageKind::kSlice);

// Takes slices into a store from its construction on. Thread-safe; one thread of its own. Engine and receiver (the
// checks) outlive it; one per engine. Destroying it closes hand-off's connections and ends every write.
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
