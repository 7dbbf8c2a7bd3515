// Compiles cpu_isa.cc and the choice of 8-bit products as they are on another CPU. The including file, which includes
// nothing else, says what that CPU has:
//   EMULATED_CPU(name)    what `name` is called there
//   EMULATED_SUPPORTS     the names that __builtin_cpu_supports knows it by
//   EMULATED_LEAF_7_EDX, EMULATED_LEAF_7_1_EAX    what cpuid says of leaf 7
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace runahead {

// As __get_cpuid_count of <cpuid.h>; leaf 1 has F16C.
static int EmulatedCpuid(unsigned leaf, unsigned subleaf, unsigned* eax, unsigned* ebx, unsigned* ecx, unsigned* edx) {
  *eax = leaf == 7 && subleaf == 1 ? EMULATED_LEAF_7_1_EAX : 0;
  *ebx = 0;
  *ecx = leaf == 1 ? 1u << 29 : 0;
  *edx = leaf == 7 && subleaf == 0 ? EMULATED_LEAF_7_EDX : 0;
  return 1;
}
static bool EmulatedSupports(std::string_view name) {
  const std::initializer_list<std::string_view> names = {EMULATED_SUPPORTS};
  return std::find(names.begin(), names.end(), name) != names.end();
}
// The kernel lets it use tiles.
static long EmulatedSyscall(long, long, long) {
  return 0;
}

}  // namespace runahead

#define __get_cpuid_count EmulatedCpuid
#define __get_cpuid(leaf, ...) EmulatedCpuid(leaf, 0, __VA_ARGS__)
#define __builtin_cpu_supports EmulatedSupports
#define syscall EmulatedSyscall
#define CpuIsaName EMULATED_CPU(CpuIsaName)
#define DetectCpuIsa EMULATED_CPU(DetectCpuIsa)
#define DetectCpuVnni EMULATED_CPU(DetectCpuVnni)
#define FastestDType EMULATED_CPU(FastestDType)
#define FastestInt8Kernels EMULATED_CPU(FastestInt8Kernels)
#define MaxIsaByName EMULATED_CPU(MaxIsaByName)
#define MaxVnniByName EMULATED_CPU(MaxVnniByName)
#define SupportsBf16 EMULATED_CPU(SupportsBf16)
#include "kernels/cpu/cpu_isa.cc"
#include "kernels/cpu/int8/select.cc"
