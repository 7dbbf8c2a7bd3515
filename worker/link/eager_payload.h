// Bytes that came with their header.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/monotonic.h"
#include "worker/link/message_engine.h"

namespace runahead {

// Keeps a copy, since what an engine received into is used again.
class EagerPayload : public MessagePayload {
 public:
  EagerPayload(const void* data, size_t size)
      : bytes_(static_cast<const char*>(data), size), arrived_(MonotonicNow()) {}
  size_t size() const override { return bytes_.size(); }
  void Accept(std::vector<BufferRef> into, ReceiveDone done) override {
    size_t from = 0;
    for (const BufferRef& piece : into) {
      if (piece.size == 0) continue;
      std::memcpy(piece.data(), bytes_.data() + from, piece.size);
      from += piece.size;
    }
    done(absl::OkStatus(), {arrived_, arrived_});
  }

 private:
  const std::string bytes_;
  const absl::Time arrived_;
};

}  // namespace runahead
