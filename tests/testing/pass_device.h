// Fake devices for models without arithmetic: the ops that a pass takes beside a family's sections.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "tests/testing/sampling_device.h"

namespace runahead::testing {

// Attention leaves `out` as it is.
class PassDevice : public SamplingDevice {
 public:
  absl::Status Attention(Stream&, const ConstTensor&, const AttentionShape&, const KvTable&, const ConstBufferRef&,
                         const MutTensor&) override {
    return absl::OkStatus();
  }
  absl::Status AttendPieces(Stream&, const ConstTensor&, const AttentionShape&, const KvTable&, const ConstBufferRef&,
                            const MutTensor&) override {
    return absl::OkStatus();
  }
  absl::Status MergePieces(Stream&, const ConstTensor&, const AttentionShape&, const KvTable&,
                           const MutTensor&) override {
    return absl::OkStatus();
  }
  absl::Status GatherRows(Stream& stream, const ConstTensor& x, std::vector<int32_t> rows,
                          const MutTensor& out) override {
    Call(stream, [=, rows = std::move(rows)] {
      const size_t bytes = static_cast<size_t>(x.cols) * DTypeSize(x.dtype);
      for (size_t i = 0; i < rows.size(); ++i) {
        std::memcpy(out.row<std::byte>(0) + i * bytes, x.row<std::byte>(0) + rows[i] * bytes, bytes);
      }
    });
    return absl::OkStatus();
  }
};

}  // namespace runahead::testing
