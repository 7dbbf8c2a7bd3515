// What a communicator needs of NCCL and CUDA, so that what it does with them is tested without either:
// nccl_peer_comm_factory.cc has the real calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"

namespace runahead {

// Thread-safe where the communicators, streams and marks differ. No call but Abort waits for another process.
// Errors are UNAVAILABLE, with the library's own words.
class NcclApi {
 public:
  // Only what made it knows what is behind it.
  using Comm = void*;
  using Stream = void*;
  using Mark = void*;  // a point in a stream

  virtual ~NcclApi() = default;

  virtual std::string version() = 0;  // "2.27.7"
  virtual std::string gpu() = 0;      // "GPU-" and its UUID

  // Once on each thread, before all others but Abort.
  virtual absl::Status EnterThread() = 0;

  virtual absl::StatusOr<std::string> NewId() = 0;  // 128 bytes
  // Communicators of two ranks. What the calls begin goes on in the background: Settled() says true when it has come to
  // its end, or the error that came up in it, also later. One call at a time, and none on what is not settled, but
  // Abort.
  // Where `comm` is not null afterwards, also after an error, Abort is to end it.
  virtual absl::Status Init(const std::string& id, int rank, Comm& comm) = 0;
  virtual absl::StatusOr<bool> Settled(Comm comm) = 0;
  // To and from the other rank, device memory. Once settled it is in `stream`.
  virtual absl::Status Send(Comm comm, const void* bytes, size_t size, Stream stream) = 0;
  virtual absl::Status Recv(Comm comm, void* into, size_t size, Stream stream) = 0;
  // Behind what is in the stream: a checksum of device memory, as `kSumPartials` numbers whose sum it is, to
  // `partials`, of NewSums. Loads what it needs at the first call, which may wait for kernels that run.
  static constexpr int kSumPartials = 64;
  virtual absl::Status Sum(const void* bytes, size_t size, uint64_t* partials, Stream stream) = 0;
  // Tells what is under way to end, which it does at once. Then frees the communicator, for which it waits until
  // nothing runs on the GPU and the other rank, where it is on this host, has let go: while another thread looks after
  // the streams. It may never return.
  virtual void Abort(Comm comm) = 0;

  virtual absl::StatusOr<Stream> NewStream() = 0;  // of high priority
  virtual void EndStream(Stream stream) = 0;
  virtual absl::StatusOr<Mark> Record(Stream stream) = 0;
  // Asks nothing of CUDA, which may be busy with Abort.
  virtual bool Passed(Mark mark) = 0;
  virtual void EndMark(Mark mark) = 0;
  // Device memory; letting it go waits for nothing.
  virtual absl::StatusOr<std::shared_ptr<Buffer>> NewScratch(size_t bytes) = 0;
  // Host memory for the sums of `count` transfers, kSumPartials numbers each. Letting it go waits for nothing.
  virtual absl::StatusOr<std::shared_ptr<Buffer>> NewSums(int count) = 0;
};

}  // namespace runahead
