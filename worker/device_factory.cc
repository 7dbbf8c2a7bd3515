#include "worker/device_factory.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/numa.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_device_options.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/emulated_link.h"
#include "kernels/cpu/int8/product.h"
#include "kernels/cuda/loader.h"
#include "server/base/cpu_limit.h"
#include "server/base/logging.h"
#include "worker/weight_sharing.h"

namespace runahead {
namespace {

DType GpuDType(const WorkerOptions& options) {
  if (options.dtype == "auto") return DType::kBF16;
  return options.dtype == "bf16" ? DType::kBF16 : options.dtype == "f16" ? DType::kF16 : DType::kF32;
}

int64_t ThreadsOf(const WorkerOptions& options) {
  return options.threads > 0 ? options.threads : UsableCores();
}

// Why `auto` took what SetNumerics made of it; of int8, how to have exact products instead.
std::string WhyAuto(const CpuDeviceOptions& device) {
  if (device.int8) {
    return "; auto takes int8 because most weights are quantised and this CPU has no AMX (dtype f32 multiplies "
           "exactly)";
  }
  if (device.compute_dtype == DType::kF32) {
    return "; auto takes f32 because this CPU has neither AMX nor AMD's AVX512-BF16";
  }
  return absl::StrCat("; auto takes bf16 because this CPU has ",
                      DetectCpuIsa() == CpuIsa::kAmx ? "AMX" : "AMD's AVX512-BF16");
}

absl::StatusOr<OpenedDevice> OpenCpu(const WorkerOptions& options, const ModelFacts& model) {
  CpuDeviceOptions device;
  if (const absl::Status status = SetNumerics(options.dtype, model.mostly_quantised, device); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("dtype: ", status.message()));
  }
  // Before it waits for another worker to pack what it would not have.
  if (options.dtype == "int8" && !model.takes_int8.ok()) {
    return absl::Status(model.takes_int8.code(), absl::StrCat("dtype: ", model.takes_int8.message()));
  }
  if (const absl::Status status = SetKvDType(options.kv_dtype, device); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("kv_dtype: ", status.message()));
  }
  device.threads = static_cast<int>(ThreadsOf(options));
  device.nice = static_cast<int>(options.nice);
  if (options.emulated_link_gbps > 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(device.emulated_link, EmulatedLink::Create({.gbps = options.emulated_link_gbps}));
    device.charges = {absl::Microseconds(options.emulated_call_us), absl::Microseconds(options.emulated_launch_us)};
  }
  device.memory_budget = static_cast<size_t>(options.device_memory_budget);
  OpenedDevice opened;
  RUNAHEAD_ASSIGN_OR_RETURN(opened.shared_weights,
                            ShareWeights(options, model, device.int8 ? "int8" : DTypeName(device.compute_dtype)));
  device.shared_weights = opened.shared_weights;
  RUNAHEAD_ASSIGN_OR_RETURN(opened.device, NewCpuDevice(device));
  LogInfo("device", std::string(opened.device->name()), ", ", device.threads, " threads, ",
          std::string(opened.device->numerics()), device.int8 ? absl::StrCat(" (", FastestInt8Kernels().name, ")") : "",
          ", KV in ", std::string(DTypeName(opened.device->kv_dtype())),
          options.dtype == "auto" ? WhyAuto(device) : "");
  return opened;
}

// Host memory that copies read, and the threads beside, belong near the GPU: all that this process has from here on.
void StayNear(const CudaDeviceInfo& gpu) {
  const std::optional<NumaNode> node = NumaNodeOfPciDevice(gpu.pci_address);
  if (!node.has_value()) return;
  if (const absl::Status status = StayOnNumaNode(*node); !status.ok()) {
    LogWarning("device", "memory and threads may be far from the GPU, on NUMA node ", node->number, ": ",
               std::string(status.message()));
    return;
  }
  LogInfo("device", "memory and threads stay on NUMA node ", node->number, ", the GPU's");
}

absl::StatusOr<OpenedDevice> OpenCuda(const WorkerOptions& options, const CudaPlugin& plugin) {
  if (options.dtype == "int8") {
    return absl::InvalidArgumentError("dtype: int8 is for CPUs; a GPU computes in bf16, f16 or f32");
  }
  if (options.kv_dtype != "auto" && options.kv_dtype != DTypeName(GpuDType(options))) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_dtype: a GPU keeps KV in its dtype, ", std::string(DTypeName(GpuDType(options)))));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const int count, plugin.count());
  CudaDeviceOptions device;
  device.ordinal = static_cast<int>(options.gpu % count);
  device.compute_dtype = GpuDType(options);
  device.memory_budget = static_cast<size_t>(options.device_memory_budget);
  RUNAHEAD_ASSIGN_OR_RETURN(const CudaDeviceInfo info, plugin.info(device.ordinal));
  StayNear(info);
  OpenedDevice opened;
  RUNAHEAD_ASSIGN_OR_RETURN(opened.device, plugin.open(device));
  RUNAHEAD_ASSIGN_OR_RETURN(opened.peer_comms, plugin.open_peer_comms(*opened.device));
  LogInfo("device", std::string(opened.device->name()), ", ", info.name, " (compute ", info.compute_major, ".",
          info.compute_minor, ", ", info.free_bytes >> 20, " of ", info.total_bytes >> 20,
          " MiB free), driver for CUDA ", info.driver_version / 1000, ".", info.driver_version % 1000 / 10, ", ",
          std::string(DTypeName(opened.device->compute_dtype())));
  return opened;
}

}  // namespace

absl::StatusOr<OpenedDevice> OpenDevice(const WorkerOptions& options, const ModelFacts& model) {
  if (options.device == "cpu") return OpenCpu(options, model);
  const bool asked = options.device == "cuda";
  if (!asked && options.emulated_link_gbps > 0) {
    LogInfo("device", "auto takes the CPU: emulated_link_gbps paces its copies only");
    return OpenCpu(options, model);
  }
  if (const absl::Status gpu = ProbeGpu(); !gpu.ok()) {
    if (asked) return absl::UnavailableError(absl::StrCat("device: cuda was asked for, and ", gpu.message()));
    LogInfo("device", "auto takes the CPU: ", std::string(gpu.message()));
    return OpenCpu(options, model);
  }
  const absl::StatusOr<const CudaPlugin*> plugin = OpenCudaPlugin();
  absl::StatusOr<OpenedDevice> opened = plugin.ok() ? OpenCuda(options, **plugin) : plugin.status();
  if (opened.ok()) return opened;
  // A GPU or a driver that is too old, or a library that is missing, is for the operator to see; a plugin of another
  // build, or an option that this GPU cannot, is to be mended.
  const bool unusable = absl::IsUnavailable(opened.status()) || absl::IsNotFound(opened.status()) ||
                        (plugin.ok() && absl::IsFailedPrecondition(opened.status()));
  if (asked || !unusable) {
    return absl::Status(opened.status().code(),
                        absl::StrCat("device: the GPU cannot be used: ", opened.status().message()));
  }
  LogWarning("device", "auto takes the CPU though there is a GPU: ", std::string(opened.status().message()));
  return OpenCpu(options, model);
}

absl::StatusOr<std::shared_ptr<Device>> OpenHostDevice(const WorkerOptions& options, const Device& device) {
  // One drives the device; a GPU needs no more.
  const int64_t taken = device.host_reads_device_memory() ? ThreadsOf(options) : 1;
  const int64_t threads = options.host_lane_threads > 0 ? options.host_lane_threads : UsableCores() - taken;
  return NewCpuDevice({.threads = static_cast<int>(std::max<int64_t>(1, threads))});
}

}  // namespace runahead
