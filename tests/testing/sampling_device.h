// A fake device that chooses tokens, for tests of what does without the ops of a forward pass.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/cpu/sample.h"
#include "tests/testing/fake_device.h"

namespace runahead::testing {

class SamplingDevice : public FakeDevice {
 public:
  absl::Status TopK(Stream& stream, const ConstTensor& logits, int64_t k, const MutTensor& ids, const MutTensor& values,
                    const MutTensor& log_sum) override {
    Call(stream, [=] {
      for (int64_t row = 0; row < logits.rows; ++row) {
        const float* x = logits.row<float>(row);
        std::vector<int32_t> order(logits.cols);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [x](int32_t a, int32_t b) { return x[a] > x[b]; });
        double sum = 0;
        for (int64_t v = 0; v < logits.cols; ++v) sum += std::exp(static_cast<double>(x[v]) - x[order[0]]);
        for (int64_t i = 0; i < k; ++i) {
          ids.row<int32_t>(row)[i] = order[i];
          values.row<float>(row)[i] = x[order[i]];
        }
        log_sum.row<float>(row)[0] = static_cast<float>(x[order[0]] + std::log(sum));
      }
    });
    return absl::OkStatus();
  }
  absl::Status Sample(Stream& stream, const ConstTensor& logits, std::vector<SampleParams> params,
                      const SampleTables& tables, const MutTensor& ids, const MutTensor& values) override {
    Call(stream, [=, params = std::move(params)] {
      for (int64_t row = 0; row < logits.rows; ++row) {
        const SampleParams& own = params[row];
        for (int32_t i = 0; i < own.kept && own.counts_row >= 0; ++i) {
          tables.counts.row<int32_t>(own.counts_row)[own.tokens[i].id] = own.tokens[i].count;
        }
        const int32_t id = SampleRow(logits.row<float>(row), logits.cols, own, RowTables(own, tables));
        ids.row<int32_t>(row)[0] = id;
        values.row<float>(row)[0] = id < 0 ? 0.0f : logits.row<float>(row)[id];
      }
    });
    return absl::OkStatus();
  }
};

}  // namespace runahead::testing
