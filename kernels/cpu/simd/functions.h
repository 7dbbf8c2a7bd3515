// The kernels of one ISA, by name. Seen only by files that are compiled per ISA.
#pragma once

#include "kernels/cpu/simd/kernels.h"

namespace runahead::RUNAHEAD_ISA {

void Matvec(const StoredView& w, const MatvecArgs& args, int64_t begin, int64_t end);
void DequantizeRow(const StoredView& w, int64_t row, float* out);
void RmsNormRow(const float* x, const float* weight, float eps, int64_t dim, void* out, DType out_dtype);
void RotateHead(float* x, const float* cos_sin, int64_t half, bool interleaved);
void ConvertRow(const float* x, int64_t n, void* out, DType out_dtype);
void ActivateRow(Activation activation, float* values, int64_t n);
void GatedActivateRow(Activation activation, const void* gate_up, DType in_dtype, int64_t n, void* out,
                      DType out_dtype);
void TopKRow(const float* logits, int64_t n, int64_t k, int32_t* ids, float* values, float* log_sum);

}  // namespace runahead::RUNAHEAD_ISA
