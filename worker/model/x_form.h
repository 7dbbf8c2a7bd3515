// X, the normed input of a layer's Q, K and V, as it is kept and handed off: in which form, and rows of it.
#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/device.h"
#include "kernels/base/row_form.h"
#include "worker/model/model.h"

namespace runahead {

// The form for `model` on `device`; the workers of a pool, who agree in numerics and KV's dtype, have the same. What
// products read, to the bit: kQ8 where they quantise it to 8 bits themselves, else the device's compute dtype. But
// where that is f32 and KV is rounded to 16 bits, kQ16, which changes less than that rounding does.
RowForm XFormOf(const Model& model, const Device& device);

// The same before weights are loaded, where they may turn out other than they should: no form of fewer bytes is taken.
RowForm SmallestXForm(const ModelConfig& config, const Device& device);

// Rows of X, dense, in a form: [rows, hidden]. Without a buffer: X is not wanted.
struct XRows {
  BufferRef ref = {};
  RowForm form = RowForm::kF32;
  int64_t hidden = 0;

  bool wanted() const { return ref.buffer != nullptr; }
  int64_t row_bytes() const { return RowFormBytes(form, hidden); }
  XRows Rows(int64_t first, int64_t count) const;
  // Of a form that is not quantised: the first `count` rows.
  Tensor tensor(int64_t count) const;
};

}  // namespace runahead
