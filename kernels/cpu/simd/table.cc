#include "kernels/cpu/simd/functions.h"

namespace runahead::RUNAHEAD_ISA {

extern const CpuKernels kKernels = {
    .matvec = Matvec,
    .dequantize_row = DequantizeRow,
    .rms_norm_row = RmsNormRow,
    .rotate_head = RotateHead,
    .convert_row = ConvertRow,
    .activate_row = ActivateRow,
    .gated_activate_row = GatedActivateRow,
    .top_k_row = TopKRow,
};

}  // namespace runahead::RUNAHEAD_ISA
