#include "kernels/cuda/nccl_comm.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/nccl_link.h"

namespace runahead {
namespace {

// Blocks of a transfer's kernel: few, for the GEMMs beside them lack what they take.
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

class RealNccl final : public NcclApi {
 public:
  RealNccl(int ordinal, std::string version, std::string gpu)
      : ordinal_(ordinal), version_(std::move(version)), gpu_(std::move(gpu)) {}

  std::string version() override { return version_; }
  std::string gpu() override { return gpu_; }
  absl::Status EnterThread() override { return Cuda(cudaSetDevice(ordinal_), "choosing the GPU"); }

  absl::StatusOr<std::string> NewId() override {
    ncclUniqueId id;
    RUNAHEAD_RETURN_IF_ERROR(Nccl(ncclGetUniqueId(&id), "drawing an id", nullptr));
    return std::string(id.internal, sizeof(id.internal));
  }

  absl::StatusOr<Comm> Init(const std::string& id, int rank) override {
    ncclUniqueId unique;
    std::memcpy(unique.internal, id.data(), sizeof(unique.internal));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.minCTAs = kLeastBlocks;
    config.maxCTAs = kMostBlocks;
    ncclComm_t comm = nullptr;
    const absl::Status status =
        Nccl(ncclCommInitRankConfig(&comm, 2, unique, rank, &config), "joining the peer's GPU", nullptr);
    if (!status.ok() && comm != nullptr) ncclCommAbort(comm);
    RUNAHEAD_RETURN_IF_ERROR(status);
    return comm;
  }

  absl::StatusOr<bool> Settled(Comm comm) override {
    ncclResult_t state = ncclSuccess;
    RUNAHEAD_RETURN_IF_ERROR(Nccl(ncclCommGetAsyncError(CommOf(comm), &state), "asking for errors", CommOf(comm)));
    RUNAHEAD_RETURN_IF_ERROR(Nccl(state, "the link between the GPUs", CommOf(comm)));
    return state != ncclInProgress;
  }

  absl::Status Send(Comm comm, const void* bytes, size_t size, Stream stream) override {
    return Nccl(ncclSend(bytes, size, ncclUint8, /*peer=*/1, CommOf(comm), StreamOf(stream)), "sending", CommOf(comm));
  }
  absl::Status Recv(Comm comm, void* into, size_t size, Stream stream) override {
    return Nccl(ncclRecv(into, size, ncclUint8, /*peer=*/0, CommOf(comm), StreamOf(stream)), "receiving", CommOf(comm));
  }

  absl::Status Finalize(Comm comm) override {
    return Nccl(ncclCommFinalize(CommOf(comm)), "ending the link", CommOf(comm));
  }
  void Destroy(Comm comm) override { ncclCommDestroy(CommOf(comm)); }
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
    cudaEvent_t event = nullptr;
    RUNAHEAD_RETURN_IF_ERROR(Cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event"));
    const absl::Status status = Cuda(cudaEventRecord(event, StreamOf(stream)), "recording an event");
    if (!status.ok()) cudaEventDestroy(event);
    RUNAHEAD_RETURN_IF_ERROR(status);
    return event;
  }
  absl::StatusOr<bool> Passed(Mark mark) override {
    const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(mark));
    if (code == cudaErrorNotReady) {
      cudaGetLastError();  // it is kept as if it were an error
      return false;
    }
    RUNAHEAD_RETURN_IF_ERROR(Cuda(code, "a transfer"));
    return true;
  }
  void EndMark(Mark mark) override { cudaEventDestroy(static_cast<cudaEvent_t>(mark)); }

  absl::StatusOr<void*> NewScratch(size_t bytes, Stream stream) override {
    void* scratch = nullptr;
    RUNAHEAD_RETURN_IF_ERROR(Cuda(cudaMallocAsync(&scratch, bytes, StreamOf(stream)), "taking GPU memory"));
    return scratch;
  }
  void EndScratch(void* scratch, Stream stream) override { cudaFreeAsync(scratch, StreamOf(stream)); }

 private:
  const int ordinal_;
  const std::string version_, gpu_;
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

absl::StatusOr<std::unique_ptr<PeerCommFactory>> NewNcclFactory(Device& device) {
  constexpr absl::string_view kPrefix = "cuda:";
  const absl::string_view name(device.name().data(), device.name().size());
  int ordinal = 0;
  RUNAHEAD_CHECK(name.substr(0, kPrefix.size()) == kPrefix && absl::SimpleAtoi(name.substr(kPrefix.size()), &ordinal));
  int version = 0;
  RUNAHEAD_RETURN_IF_ERROR(Nccl(ncclGetVersion(&version), "asking for NCCL's version", nullptr));
  cudaDeviceProp properties;
  RUNAHEAD_RETURN_IF_ERROR(Cuda(cudaGetDeviceProperties(&properties, ordinal), "asking what the GPU is"));
  auto api = std::make_unique<RealNccl>(ordinal, VersionText(version), UuidText(properties.uuid));
  return std::make_unique<NcclLinkFactory>(std::move(api), HostText());
}

}  // namespace runahead
