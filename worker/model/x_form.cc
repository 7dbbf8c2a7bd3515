#include "worker/model/x_form.h"

namespace runahead {
namespace {

RowForm FormFor(const ModelConfig& config, const Device& device, bool qkv_in_8_bits) {
  const DType compute = device.compute_dtype();
  if (config.hidden % QuantOf(RowForm::kQ8).group != 0) return FormOf(compute);
  if (qkv_in_8_bits) return RowForm::kQ8;
  return compute == DType::kF32 && device.kv_dtype() != DType::kF32 ? RowForm::kQ16 : FormOf(compute);
}

// Of all layers, for a layer's X is as long in all.
bool MultipliesQkvIn8Bits(const Model& model) {
  for (int64_t layer = 0; layer < model.config().layers; ++layer) {
    const LayerMatrices matrices = model.Matrices(layer);
    if (matrices.empty() || matrices[0]->bytes().int8 == 0) return false;
  }
  return true;
}

}  // namespace

RowForm XFormOf(const Model& model, const Device& device) {
  return FormFor(model.config(), device, device.numerics() == "int8" && MultipliesQkvIn8Bits(model));
}

RowForm SmallestXForm(const ModelConfig& config, const Device& device) {
  return FormFor(config, device, device.numerics() == "int8");
}

XRows XRows::Rows(int64_t first, int64_t count) const {
  return {ref.Slice(static_cast<size_t>(first * row_bytes()), static_cast<size_t>(count * row_bytes())), form, hidden};
}

Tensor XRows::tensor(int64_t count) const {
  return MakeTensor(ref, DTypeOf(form), count, hidden);
}

}  // namespace runahead
