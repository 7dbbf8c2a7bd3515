// A step that comes again with other arrays: out = rows of a table, copy = these backwards.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/device.h"

namespace runahead {

// Ops with arrays of the host's, on memory that stays the same. For one thread; the device and the stream outlive it.
class RepeatedStep {
 public:
  static constexpr int64_t kRows = 3, kCols = 32;

  RepeatedStep(Device& device, Stream& stream) : device_(device), stream_(stream) {
    for (int i = 0; i < 50 * kCols; ++i) values_.push_back(static_cast<float>(i));
    const WeightSource source{nullptr, kCols, {{WeightType::kF32, reinterpret_cast<std::byte*>(values_.data()), 50}}};
    table_ = *device_.LoadWeights(source, kUseDecode);
    out_ = NewTensor();
    copy_ = NewTensor();
  }

  void Run(const std::vector<int32_t>& ids) {
    device_.BeginStep(stream_);
    EmbedRows(ids);
    CopyBackwards();
    device_.EndStep(stream_);
  }
  // What Run does within a step, one by one.
  void EmbedRows(const std::vector<int32_t>& ids) {
    EXPECT_TRUE(device_.Embed(stream_, *table_, ids, false, out_).ok());
  }
  void CopyBackwards() { EXPECT_TRUE(device_.GatherRows(stream_, out_, {2, 1, 0}, copy_).ok()); }

  // What `copy` holds once all that is enqueued has run.
  std::vector<float> Read() {
    const BufferRef host = BufferRef::Whole(*device_.Allocate(copy_.ref.size, MemoryKind::kHost));
    EXPECT_TRUE(device_.Copy(stream_, copy_.ref, host).ok());
    EXPECT_TRUE(device_.Record(stream_).Wait().ok());
    return Floats(host);
  }
  static std::vector<float> Floats(const BufferRef& host) {
    const float* const at = reinterpret_cast<const float*>(host.data());
    return {at, at + kRows * kCols};
  }
  // What it should hold.
  static std::vector<float> Backwards(const std::vector<int32_t>& ids) {
    std::vector<float> rows;
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
      for (int64_t c = 0; c < kCols; ++c) rows.push_back(static_cast<float>(*id * kCols + c));
    }
    return rows;
  }

  const Weights& table() const { return *table_; }
  const Tensor& out() const { return out_; }
  const Tensor& copy() const { return copy_; }
  void SetCopy(const Tensor& copy) { copy_ = copy; }
  // Other memory, of the shape of `copy`.
  Tensor NewTensor() {
    return MakeTensor(BufferRef::Whole(*device_.Allocate(kRows * kCols * sizeof(float), MemoryKind::kDevice)),
                      DType::kF32, kRows, kCols);
  }

 private:
  Device& device_;
  Stream& stream_;
  std::vector<float> values_;
  std::shared_ptr<const Weights> table_;
  Tensor out_, copy_;
};

}  // namespace runahead
