#include "kernels/cuda/nccl_peer_comm_factory.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/nccl_peer_comm.h"

namespace runahead {
namespace {

// Blocks of a transfer's kernel: one moves some 20 GB/s over NVLink, and what they take the GEMMs beside them lack.
constexpr int kLeastBlocks = 1;
constexpr int kMostBlocks = 4;

absl::Status Cuda(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")"));
}

// What was begun counts as done: Settled looks after it.
absl::Status Nccl(ncclResult_t code, const char* what, ncclComm_t comm) {
  if (code == ncclSuccess || code == ncclInProgress) return absl::OkStatus();
  const char* const last = ncclGetLastError(comm);
  return absl::UnavailableError(absl::StrCat(what, ": ", ncclGetErrorString(code), " (",
                                             last == nullptr ? "NCCL says no more" : last,
                                             "; NCCL_DEBUG=INFO tells more)"));
}

ncclComm_t CommOf(NcclApi::Comm comm) {
  return static_cast<ncclComm_t>(comm);
}
cudaStream_t StreamOf(NcclApi::Stream stream) {
  return static_cast<cudaStream_t>(stream);
}

// cuStreamWriteValue32 of the driver, with its types as the runtime knows them.
using StreamWriteValue = int (*)(cudaStream_t stream, unsigned long long address, uint32_t value, unsigned int flags);

// Taken from the driver that is there: linking it would keep the plugin from loading where it is not.
absl::StatusOr<StreamWriteValue> FindWriteValue() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  RUNAHEAD_RETURN_IF_ERROR(
      Cuda(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &function, 12000, cudaEnableDefault, &found),
           "asking the driver for cuStreamWriteValue32"));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::UnavailableError("the GPU's driver has no cuStreamWriteValue32: install a newer one");
  }
  return reinterpret_cast<StreamWriteValue>(function);
}

// Words that a stream raises and the host reads. Thread-safe. Their memory goes with this: to unpin it is to wait for
// the GPU.
class Flags {
 public:
  explicit Flags(Device& device) : device_(device) {}

  // Not raised.
  absl::StatusOr<uint32_t*> Take() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (free_.empty()) {
      RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory, device_.Allocate(kBytes, MemoryKind::kHost));
      auto* const words = reinterpret_cast<uint32_t*>(memory->data());
      for (size_t i = 0; i < kBytes / sizeof(uint32_t); ++i) free_.push_back(words + i);
      memory_.push_back(std::move(memory));
    }
    uint32_t* const flag = free_.back();
    free_.pop_back();
    std::atomic_ref<uint32_t>(*flag).store(0, std::memory_order_release);
    return flag;
  }
  // One that is not raised yet may be at any time: nobody gets it again.
  void GiveBack(uint32_t* flag) RUNAHEAD_EXCLUDES(mu_) {
    if (!Raised(flag)) return;
    MutexLock lock(mu_);
    free_.push_back(flag);
  }
  static bool Raised(uint32_t* flag) { return std::atomic_ref<uint32_t>(*flag).load(std::memory_order_acquire) != 0; }

 private:
  static constexpr size_t kBytes = 4096;
  Device& device_;
  Mutex mu_;
  std::vector<uint32_t*> free_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Buffer>> memory_ RUNAHEAD_GUARDED_BY(mu_);
};

// Pinned memory for the sums of communicators, all of one size, which the next one gets when one has gone: to unpin it
// is to wait for the GPU. Thread-safe; outlives what it gave.
class SumsMemory {
 public:
  explicit SumsMemory(Device& device) : device_(device) {}

  absl::StatusOr<std::shared_ptr<Buffer>> Take(size_t bytes) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    std::shared_ptr<Buffer> memory;
    if (free_.empty()) {
      RUNAHEAD_ASSIGN_OR_RETURN(memory, device_.Allocate(bytes, MemoryKind::kHost));
    } else {
      memory = std::move(free_.back());
      free_.pop_back();
    }
    Buffer* const taken = memory.get();
    return std::shared_ptr<Buffer>(taken, [this, memory = std::move(memory)](Buffer*) mutable {
      MutexLock lock(mu_);
      free_.push_back(std::move(memory));
    });
  }

 private:
  Device& device_;
  Mutex mu_;
  std::vector<std::shared_ptr<Buffer>> free_ RUNAHEAD_GUARDED_BY(mu_);
};

class RealNccl final : public NcclApi {
 public:
  RealNccl(Device& device, StreamWriteValue write_value, int ordinal, std::string version, std::string gpu)
      : device_(device),
        write_value_(write_value),
        ordinal_(ordinal),
        version_(std::move(version)),
        gpu_(std::move(gpu)),
        flags_(device),
        sums_(device) {}

  std::string version() override { return version_; }
  std::string gpu() override { return gpu_; }
  absl::Status EnterThread() override { return Cuda(cudaSetDevice(ordinal_), "choosing the GPU"); }

  absl::StatusOr<std::string> NewId() override {
    ncclUniqueId id;
    RUNAHEAD_RETURN_IF_ERROR(Nccl(ncclGetUniqueId(&id), "drawing an id", nullptr));
    return std::string(id.internal, sizeof(id.internal));
  }

  absl::Status Init(const std::string& id, int rank, Comm& comm) override {
    ncclUniqueId unique;
    std::memcpy(unique.internal, id.data(), sizeof(unique.internal));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.minCTAs = kLeastBlocks;
    config.maxCTAs = kMostBlocks;
    ncclComm_t made = nullptr;
    const absl::Status status =
        Nccl(ncclCommInitRankConfig(&made, 2, unique, rank, &config), "joining the peer's GPU", nullptr);
    comm = made;
    return status;
  }

  absl::StatusOr<bool> Settled(Comm comm) override {
    ncclResult_t state = ncclSuccess;
    RUNAHEAD_RETURN_IF_ERROR(Nccl(ncclCommGetAsyncError(CommOf(comm), &state), "asking for errors", CommOf(comm)));
    RUNAHEAD_RETURN_IF_ERROR(Nccl(state, "the communicator between the GPUs", CommOf(comm)));
    return state != ncclInProgress;
  }

  absl::Status Send(Comm comm, const void* bytes, size_t size, Stream stream) override {
    return Nccl(ncclSend(bytes, size, ncclUint8, /*peer=*/1, CommOf(comm), StreamOf(stream)), "sending", CommOf(comm));
  }
  absl::Status Recv(Comm comm, void* into, size_t size, Stream stream) override {
    return Nccl(ncclRecv(into, size, ncclUint8, /*peer=*/0, CommOf(comm), StreamOf(stream)), "receiving", CommOf(comm));
  }

  absl::Status Sum(const void* bytes, size_t size, uint64_t* partials, Stream stream) override {
    static_assert(runahead::kSumPartials == NcclApi::kSumPartials);
    return Cuda(LaunchSum(static_cast<const std::byte*>(bytes), size, partials, StreamOf(stream)),
                "computing the checksum of a transfer");
  }

  void Abort(Comm comm) override { ncclCommAbort(CommOf(comm)); }

  absl::StatusOr<Stream> NewStream() override {
    int lowest = 0, highest = 0;
    cudaStream_t stream = nullptr;
    RUNAHEAD_RETURN_IF_ERROR(
        Cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "asking for the streams' priorities"));
    RUNAHEAD_RETURN_IF_ERROR(
        Cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest), "making a stream"));
    return stream;
  }
  void EndStream(Stream stream) override { cudaStreamDestroy(StreamOf(stream)); }

  absl::StatusOr<Mark> Record(Stream stream) override {
    RUNAHEAD_ASSIGN_OR_RETURN(uint32_t* const flag, flags_.Take());
    // Behind all that the stream has written before.
    const int code = write_value_(StreamOf(stream), reinterpret_cast<uintptr_t>(flag), 1, /*flags=*/0);
    RUNAHEAD_RETURN_IF_ERROR(Cuda(static_cast<cudaError_t>(code), "marking a point in a stream"));
    return flag;
  }
  bool Passed(Mark mark) override { return Flags::Raised(static_cast<uint32_t*>(mark)); }
  void EndMark(Mark mark) override { flags_.GiveBack(static_cast<uint32_t*>(mark)); }

  absl::StatusOr<std::shared_ptr<Buffer>> NewScratch(size_t bytes) override {
    return device_.Allocate(bytes, MemoryKind::kDevice);
  }
  absl::StatusOr<std::shared_ptr<Buffer>> NewSums(int count) override {
    return sums_.Take(static_cast<size_t>(count) * NcclApi::kSumPartials * sizeof(uint64_t));
  }

 private:
  Device& device_;
  const StreamWriteValue write_value_;
  const int ordinal_;
  const std::string version_, gpu_;
  Flags flags_;
  SumsMemory sums_;
};

std::string VersionText(int code) {
  return absl::StrCat(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

std::string UuidText(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    const bool begins = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    absl::StrAppend(&text, begins ? "-" : "", absl::Hex(static_cast<unsigned char>(uuid.bytes[i]), absl::kZeroPad2));
  }
  return text;
}

// As NCCL tells hosts apart: by name and boot, or as it is told to. A container may share both with its neighbour, who
// has other GPUs then.
std::string HostText() {
  std::string host;
  if (const char* const told = std::getenv("NCCL_HOSTID"); told != nullptr && *told != '\0') {
    host = told;
  } else {
    char name[256] = "";
    if (gethostname(name, sizeof(name) - 1) == 0) host = name;
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    absl::StrAppend(&host, " ", boot);
  }
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const unsigned char c : host) hash = (hash ^ c) * 0x100000001b3;
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerCommFactory>> NewNcclPeerCommFactory(Device& device) {
  constexpr absl::string_view kPrefix = "cuda:";
  const absl::string_view name(device.name().data(), device.name().size());
  int ordinal = 0;
  RUNAHEAD_CHECK(name.substr(0, kPrefix.size()) == kPrefix && absl::SimpleAtoi(name.substr(kPrefix.size()), &ordinal));
  int version = 0;
  RUNAHEAD_RETURN_IF_ERROR(Nccl(ncclGetVersion(&version), "asking for NCCL's version", nullptr));
  cudaDeviceProp properties;
  RUNAHEAD_RETURN_IF_ERROR(Cuda(cudaGetDeviceProperties(&properties, ordinal), "asking what the GPU is"));
  RUNAHEAD_ASSIGN_OR_RETURN(const StreamWriteValue write_value, FindWriteValue());
  auto api = std::make_unique<RealNccl>(device, write_value, ordinal, VersionText(version), UuidText(properties.uuid));
  return std::make_unique<NcclPeerCommFactory>(std::move(api), HostText());
}

}  // namespace runahead
