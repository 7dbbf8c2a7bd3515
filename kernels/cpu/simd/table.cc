#include "kernels/cpu/simd/functions.h"

namespace runahead::RUNAHEAD_ISA {

extern const CpuKernels kKernels = {
    .matvec = Matvec,
    .dequantize_row = DequantizeRow,
    .rms_norm_row = RmsNormRow,
    .rotate_head = RotateHead,
    .convert_row = ConvertRow,
    .swiglu_row = SwiGluRow,
    .top_k_row = TopKRow,
};

}  // namespace runahead::RUNAHEAD_ISA
