// A KvPort that keeps one sequence's KV in plain buffers: the forward pass without chain or store.
#pragma once

#include <vector>

#include "worker/model/kv_port.h"

namespace runahead {

class DensePort : public KvPort {
 public:
  // Room for `capacity` tokens.
  DensePort(Device& device, const AttentionShape& shape, int64_t layers, int64_t capacity) : shape_(shape) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      auto buffer = device.Allocate(static_cast<size_t>(capacity * shape.kv_row_bytes()), MemoryKind::kDevice);
      RUNAHEAD_CHECK(buffer.ok());
      layers_.push_back(BufferRef::Whole(*std::move(buffer)));
    }
  }

  // Rows of the pass that comes next: positions [length, length + rows).
  void Next(int64_t rows) { rows_ = rows; }
  // The pass is enqueued: its rows belong to the sequence.
  void Append() { length_ += rows_; }

  absl::Status Begin(int64_t) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<KvSpan>> Own(int64_t layer) override {
    const size_t row = static_cast<size_t>(shape_.kv_row_bytes());
    return std::vector<KvSpan>{{layers_[layer].Slice(length_ * row, rows_ * row), rows_}};
  }
  absl::StatusOr<std::vector<AttentionSequence>> Publish(int64_t layer, Stream&) override {
    const int64_t end = length_ + rows_;
    return std::vector<AttentionSequence>{
        {0, rows_, end, {{layers_[layer].Slice(0, end * shape_.kv_row_bytes()), end}}}};
  }

  int64_t length() const { return length_; }
  BufferRef layer(int64_t index) const { return layers_[index]; }

 private:
  const AttentionShape shape_;
  std::vector<BufferRef> layers_;
  int64_t rows_ = 0;
  int64_t length_ = 0;
};

}  // namespace runahead
