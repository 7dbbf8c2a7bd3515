// The four matrix products of a layer, for so many rows: what a prompt's pass spends most of its time in.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "tests/bench/gpu_model.h"

namespace runahead {

class LayerProducts {
 public:
  static constexpr std::array<const char*, 4> kNames = {"qkv", "output", "gate_up", "down"};

  // What the results are. kPlain: in the compute dtype, the fastest form that libraries know. kAsInThePass: qkv in f32,
  // output and down added to the f32 residual stream.
  enum class Form { kPlain, kAsInThePass };

  static absl::StatusOr<LayerProducts> Make(Device& device, const BenchModel& model, int64_t rows, Form form);

  int64_t rows() const { return rows_; }
  double flops(int product) const;
  // One product, or all four, of the next layer in turn: no weight is in a cache still.
  absl::Status Enqueue(Stream& stream, int product);
  absl::Status EnqueueAll(Stream& stream);

 private:
  struct Operands {
    Tensor x, out;
    LinearOptions options;
  };
  LayerProducts(Device& device, const BenchModel& model, int64_t rows)
      : device_(&device), model_(&model), rows_(rows) {}
  const std::shared_ptr<const Weights>& weights(int product, int64_t layer) const;

  Device* device_;
  const BenchModel* model_;
  int64_t rows_;
  std::array<Operands, 4> operands_;
  int64_t next_ = 0;
};

}  // namespace runahead
