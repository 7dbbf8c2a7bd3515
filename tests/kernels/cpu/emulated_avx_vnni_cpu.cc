// A CPU with AVX-VNNI and without AVX-512, as small cores are.
#define EMULATED_CPU(name) AvxVnniCpu_##name
#define EMULATED_SUPPORTS "avx2", "fma"
#define EMULATED_LEAF_7_EDX 0u
#define EMULATED_LEAF_7_1_EAX 1u << 4
#include "tests/kernels/cpu/emulated_cpu.h"
