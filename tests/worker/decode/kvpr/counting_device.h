// What KVPR moves, multiplies and attends to, seen from outside.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "tests/testing/wrapping_device.h"
#include "worker/kv/store.h"

namespace runahead {

// Used by one thread, as the loop is.
class CountingDevice final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  std::unique_ptr<Stream> NewStream(std::string_view name) override {
    std::unique_ptr<Stream> stream = inner_->NewStream(name);
    if (name == "kvpr store") store_stream_ = stream.get();
    return stream;
  }
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    if (from.buffer == kv_) kv_bytes[from.offset / kv_layer_] += from.size;
    if (from.buffer == x_) x_bytes[from.offset / x_layer_] += from.size;
    if (to.buffer == kv_ || to.buffer == x_) ADD_FAILURE() << "what the device made comes through memory of its own";
    if (&stream == store_stream_) written_back += from.size;
    return inner_->Copy(stream, from, to);
  }
  absl::Status Linear(Stream& stream, const ConstTensor& tensor, std::shared_ptr<const Weights> w,
                      const LinearOptions& options, const MutTensor& out) override {
    if (options.first_row > 0) recomputed += tensor.rows;
    return inner_->Linear(stream, tensor, std::move(w), options, out);
  }

  // Counts from here on.
  void Watch(const KvStore& store) {
    kv_ = store.arena().Layer(0).buffer;
    x_ = store.x_arena()->Layer(0).buffer;
    kv_layer_ = store.arena().Layer(0).size;
    x_layer_ = store.x_arena()->Layer(0).size;
    Reset();
  }
  void Reset() {
    kv_bytes.clear();
    x_bytes.clear();
    recomputed = 0;
    written_back = 0;
  }

  std::map<size_t, size_t> kv_bytes, x_bytes;  // from the stores, by layer
  int64_t recomputed = 0;                      // rows
  size_t written_back = 0;                     // bytes

 private:
  std::shared_ptr<Buffer> kv_, x_;  // the stores'
  size_t kv_layer_ = 0, x_layer_ = 0;
  const Stream* store_stream_ = nullptr;  // of the loop that was made last
};

// What the host's device attended.
class CountingHost final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  absl::Status AttendPieces(Stream& stream, const ConstTensor& q, const AttentionShape& shape, const KvTable& table,
                            const ConstBufferRef& layer, const MutTensor& partials) override {
    for (const KvSequence& sequence : table.layout().sequences) attended += sequence.end - sequence.begin;
    return inner_->AttendPieces(stream, q, shape, table, layer, partials);
  }
  int64_t attended = 0;  // positions, of all layers
};

}  // namespace runahead
