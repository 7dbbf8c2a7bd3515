#include "kernels/cpu/cpu_device_options.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_isa.h"

namespace runahead {
namespace {

constexpr int kMostThreads = 1024;

}  // namespace

absl::Status SetNumerics(std::string_view name, bool weights_are_quantised, CpuDeviceOptions& options) {
  options.int8 = name == "int8";
  if (name == "f32" || name == "int8") {
    options.compute_dtype = DType::kF32;
  } else if (name == "bf16") {
    options.compute_dtype = DType::kBF16;
  } else if (name == "auto") {
    options.int8 = weights_are_quantised && DetectCpuIsa() != CpuIsa::kAmx;
    options.compute_dtype = options.int8 ? DType::kF32 : FastestDType();
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("a CPU does not compute in ", std::string(name), ": give f32, bf16, int8 or auto"));
  }
  return absl::OkStatus();
}

absl::Status SetKvDType(std::string_view name, CpuDeviceOptions& options) {
  if (name == "auto") {
    options.kv_dtype = options.int8 ? DType::kF16 : options.compute_dtype;
    return absl::OkStatus();
  }
  for (const DType dtype : kCpuKvDTypes) {
    if (name != DTypeName(dtype)) continue;
    options.kv_dtype = dtype;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a CPU does not keep KV in ", std::string(name), ": give f32, bf16, f16 or auto"));
}

absl::Status CheckCpuDeviceOptions(const CpuDeviceOptions& options) {
  if (options.threads < 1 || options.threads > kMostThreads) {
    return absl::InvalidArgumentError(absl::StrCat("threads is ", options.threads, ", not 1 to ", kMostThreads));
  }
  if (options.nice < 0 || options.nice > 19) {
    return absl::InvalidArgumentError(absl::StrCat("nice is ", options.nice, ", not 0 to 19"));
  }
  if (options.int8 && options.compute_dtype != DType::kF32) {
    return absl::InvalidArgumentError("products in 8 bits go with compute dtype f32");
  }
  const CpuIsa isa = DetectCpuIsa();
  if (isa == CpuIsa::kBaseline) {
    return absl::UnimplementedError("this CPU (or ONEDNN_MAX_CPU_ISA) lacks AVX2, FMA or F16C, which Runahead needs");
  }
  if (options.compute_dtype == DType::kBF16 && !SupportsBf16(isa)) {
    return absl::UnimplementedError(
        absl::StrCat("compute dtype bf16 needs AVX-512, and this CPU has ", std::string(CpuIsaName(isa)), ": use f32"));
  }
  return absl::OkStatus();
}

}  // namespace runahead
