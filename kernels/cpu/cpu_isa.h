// What vector instructions this CPU has, as far as our kernels and oneDNN's differ by it.
#pragma once

#include <string_view>

#include "kernels/base/dtype.h"

namespace runahead {

// In rising order: each has all that is before it.
enum class CpuIsa {
  kBaseline,    // less than AVX2 + FMA + F16C: not supported by the CPU device
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, VL, DQ
  kAvx512Bf16,  // and AVX512_BF16
  kAmx,         // and AMX-BF16, with the kernel's permission to use the tiles
};

std::string_view CpuIsaName(CpuIsa isa);

// The best of this machine, found once. ONEDNN_MAX_CPU_ISA (oneDNN's own variable, read at the first call) lowers it
// for oneDNN and for us alike, so that one machine can stand for an older one. Asks the kernel for the AMX permission.
CpuIsa DetectCpuIsa();

// Instructions that multiply bytes and add four products at once, which neither follow nor imply a CpuIsa.
struct CpuVnni {
  bool avx = false;     // AVX-VNNI, on 256 bits
  bool avx512 = false;  // AVX512-VNNI, with all of CpuIsa::kAvx512
  bool amx = false;     // AMX-INT8, by tiles, with the kernel's permission to use them and AVX512-VNNI
};

// Those of this machine, found once, as far as ONEDNN_MAX_CPU_ISA allows them.
CpuVnni DetectCpuVnni();
CpuVnni MaxVnniByName(std::string_view onednn_name);

// What ONEDNN_MAX_CPU_ISA allows at most; a name that oneDNN does not know allows all. Empty: all.
CpuIsa MaxIsaByName(std::string_view onednn_name);

// The compute dtype in which prefill is fastest: bf16 with AMX, or with AVX512_BF16 on AMD (on Intel without AMX
// oneDNN's bf16 is slower than its f32); f32 elsewhere.
DType FastestDType();
DType FastestDType(CpuIsa isa, bool amd);

// Whether oneDNN can multiply in bf16 here at all (it refuses without AVX-512).
bool SupportsBf16(CpuIsa isa);

}  // namespace runahead
