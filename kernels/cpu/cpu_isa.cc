#include "kernels/cpu/cpu_isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace runahead {
namespace {

// AMX state is large, so Linux hands it out on request only (arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)).
bool RequestAmxPermission() {
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Bits of what cpuid says in edx.
constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;

// Whether tiles can multiply in that type.
bool HasAmx(unsigned type) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & type) != 0 && (edx & kAmxTile) != 0 && RequestAmxPermission();
}

bool HasAvx512Bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1u << 5)) != 0;
}

bool HasAvxVnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1u << 4)) != 0;
}

bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 29)) != 0;
}

CpuIsa ByCpuid() {
  // __builtin_cpu_supports also checks that the operating system saves the registers.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !HasF16c()) return CpuIsa::kBaseline;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return CpuIsa::kAvx2;
  }
  if (!HasAvx512Bf16()) return CpuIsa::kAvx512;
  return HasAmx(kAmxBf16) ? CpuIsa::kAmx : CpuIsa::kAvx512Bf16;
}

bool IsAmd() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(0, &eax, &ebx, &ecx, &edx) != 0 && std::memcmp(&ebx, "Auth", 4) == 0;
}

}  // namespace

std::string_view CpuIsaName(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kBaseline:
      return "baseline";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512_bf16";
    case CpuIsa::kAmx:
      return "amx";
  }
  return "unknown";
}

CpuIsa MaxIsaByName(std::string_view onednn_name) {
  if (onednn_name == "SSE41" || onednn_name == "AVX") return CpuIsa::kBaseline;
  if (onednn_name == "AVX2" || onednn_name == "AVX2_VNNI") return CpuIsa::kAvx2;
  if (onednn_name == "AVX512_CORE" || onednn_name == "AVX512_CORE_VNNI") return CpuIsa::kAvx512;
  if (onednn_name == "AVX512_CORE_BF16") return CpuIsa::kAvx512Bf16;
  return CpuIsa::kAmx;
}

CpuIsa DetectCpuIsa() {
  static const CpuIsa isa = [] {
    const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
    return std::min(ByCpuid(), MaxIsaByName(limit == nullptr ? "" : limit));
  }();
  return isa;
}

CpuVnni MaxVnniByName(std::string_view onednn_name) {
  const CpuIsa isa = MaxIsaByName(onednn_name);
  const bool avx512 = isa >= CpuIsa::kAvx512 && onednn_name != "AVX512_CORE";  // whose first CPUs have no VNNI
  return {.avx = avx512 || onednn_name == "AVX2_VNNI", .avx512 = avx512, .amx = isa >= CpuIsa::kAmx};
}

CpuVnni DetectCpuVnni() {
  static const CpuVnni vnni = [] {
    const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
    const CpuVnni most = MaxVnniByName(limit == nullptr ? "" : limit);
    const CpuIsa isa = DetectCpuIsa();
    const bool avx512 = most.avx512 && isa >= CpuIsa::kAvx512 && __builtin_cpu_supports("avx512vnni");
    return CpuVnni{.avx = most.avx && isa >= CpuIsa::kAvx2 && HasAvxVnni(),
                   .avx512 = avx512,
                   .amx = most.amx && avx512 && HasAmx(kAmxInt8)};
  }();
  return vnni;
}

DType FastestDType(CpuIsa isa, bool amd) {
  if (isa == CpuIsa::kAmx || (isa == CpuIsa::kAvx512Bf16 && amd)) return DType::kBF16;
  return DType::kF32;
}

DType FastestDType() {
  return FastestDType(DetectCpuIsa(), IsAmd());
}

bool SupportsBf16(CpuIsa isa) {
  return isa >= CpuIsa::kAvx512;
}

}  // namespace runahead
