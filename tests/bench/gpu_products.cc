#include "tests/bench/gpu_products.h"

#include "kernels/base/status_macros.h"

namespace runahead {

absl::StatusOr<LayerProducts> LayerProducts::Make(Device& device, const BenchModel& model, int64_t rows, Form form) {
  LayerProducts products(device, model, rows);
  for (int i = 0; i < 4; ++i) {
    const Weights& w = *products.weights(i, 0);
    Operands& operands = products.operands_[i];
    const bool residual = i == 1 || i == 3;
    const bool plain = form == Form::kPlain;
    operands.options.accumulate = residual && !plain;
    const DType out = plain || i == 2 ? device.compute_dtype() : DType::kF32;
    RUNAHEAD_ASSIGN_OR_RETURN(operands.x, RandomTensor(device, rows, w.cols()));
    RUNAHEAD_ASSIGN_OR_RETURN(operands.out, EmptyTensor(device, out, rows, w.rows()));
  }
  return products;
}

const std::shared_ptr<const Weights>& LayerProducts::weights(int product, int64_t layer) const {
  const LlamaLayer& of = model_->weights.layers[layer];
  return of.matrices[product];
}

double LayerProducts::flops(int product) const {
  const Weights& w = *weights(product, 0);
  return 2.0 * static_cast<double>(w.rows() * w.cols()) * static_cast<double>(rows_);
}

absl::Status LayerProducts::Enqueue(Stream& stream, int product) {
  const Operands& operands = operands_[product];
  next_ = (next_ + 1) % model_->config.layers;
  return device_->Linear(stream, operands.x, weights(product, next_), operands.options, operands.out);
}

absl::Status LayerProducts::EnqueueAll(Stream& stream) {
  next_ = (next_ + 1) % model_->config.layers;
  for (int i = 0; i < 4; ++i) {
    const Operands& operands = operands_[i];
    RUNAHEAD_RETURN_IF_ERROR(device_->Linear(stream, operands.x, weights(i, next_), operands.options, operands.out));
  }
  return absl::OkStatus();
}

}  // namespace runahead
