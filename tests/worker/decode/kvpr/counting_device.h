// What KVPR moves, multiplies and attends to, seen from outside.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/testing/wrapping_device.h"
#include "worker/kv/store.h"

namespace runahead {

// Used by one thread, as the loop is.
class CountingDevice final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    if (from.buffer == kv_) kv_bytes[from.offset / kv_layer_] += from.size;
    if (from.buffer == x_) x_bytes[from.offset / x_layer_] += from.size;
    return inner_->Copy(stream, from, to);
  }
  absl::Status ExchangeRows(Stream& stream, const ConstTensor& x, std::vector<RowMove> rows,
                            const MutTensor& out) override {
    const bool back = out.ref.buffer == kv_ || out.ref.buffer == x_;
    if (back) written_back += rows.size() * static_cast<size_t>(x.cols) * DTypeSize(x.dtype);
    return inner_->ExchangeRows(stream, x, std::move(rows), out);
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
