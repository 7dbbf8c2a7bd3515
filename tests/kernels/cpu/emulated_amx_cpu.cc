// A CPU with all that is looked for: AVX-VNNI, AVX-512 with VNNI and BF16, AMX.
#define EMULATED_CPU(name) AmxCpu_##name
#define EMULATED_SUPPORTS "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"
#define EMULATED_LEAF_7_EDX 1u << 22 | 1u << 24 | 1u << 25
#define EMULATED_LEAF_7_1_EAX 1u << 4 | 1u << 5
#include "tests/kernels/cpu/emulated_cpu.h"
