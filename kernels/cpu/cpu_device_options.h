// What a CPU device is made with, and what it computes in.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"
#include "kernels/cpu/cpu_stream.h"
#include "kernels/cpu/emulated_link.h"
#include "kernels/cpu/shared_weights.h"

namespace runahead {

// What a CPU keeps KV in, beside any numerics.
inline constexpr DType kCpuKvDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

struct CpuDeviceOptions {
  int threads = 1;                     // that run an op, the stream's own among them
  int nice = 0;                        // what threads step back by behind others on the same cores (StepBack)
  DType compute_dtype = DType::kF32;   // f32, or bf16 where SupportsBf16
  bool int8 = false;                   // quantised weights times activations in 8 bits; with f32 only
  std::optional<DType> kv_dtype = {};  // none: compute_dtype
  size_t memory_budget = 0;            // bytes of kDevice memory, weights included; 0: no limit
  // Where the weights are that other processes have, too: those for 8 bits, of sources with names. Null: in memory of
  // its own.
  std::shared_ptr<SharedWeights> shared_weights = nullptr;
  // What copies between kDevice and kHost memory take their time on. With one, ops find kDevice memory of this device
  // and weights only, and refuse other arguments as FAILED_PRECONDITION. Null: as fast as memory copies go, and ops
  // take all memory.
  std::shared_ptr<EmulatedLink> emulated_link = nullptr;
  CallCharges charges = {};
};

// Sets compute_dtype and int8 to what `name` stands for: f32, bf16, int8, or auto for the fastest here: int8 where most
// weights are quantised, but bf16 where there is AMX; else FastestDType's. INVALID_ARGUMENT for another name.
absl::Status SetNumerics(std::string_view name, bool weights_are_quantised, CpuDeviceOptions& options);
// Sets kv_dtype to what `name` stands for beside the numerics: f32, bf16, f16, or auto: f16 with int8, else the
// compute dtype. INVALID_ARGUMENT for another name.
absl::Status SetKvDType(std::string_view name, CpuDeviceOptions& options);

// INVALID_ARGUMENT for options that no machine allows; UNIMPLEMENTED, naming what is missing, for what this one cannot.
absl::Status CheckCpuDeviceOptions(const CpuDeviceOptions& options);

}  // namespace runahead
