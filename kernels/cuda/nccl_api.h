// What a communicator needs of NCCL and CUDA, so that what it does with them is tested without either: nccl_comm.cc has
// the real calls.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace runahead {

// Thread-safe where the communicators, streams and marks differ. No call waits for another process. Errors are
// UNAVAILABLE, with the library's own words.
class NcclApi {
 public:
  // Only what made it knows what is behind it.
  using Comm = void*;
  using Stream = void*;
  using Mark = void*;  // a point in a stream

  virtual ~NcclApi() = default;

  virtual std::string version() = 0;  // "2.27.7"
  virtual std::string gpu() = 0;      // "GPU-" and its UUID

  // Once on each thread, before all others.
  virtual absl::Status EnterThread() = 0;

  virtual absl::StatusOr<std::string> NewId() = 0;  // 128 bytes
  // Communicators of two ranks. What the calls begin goes on in the background: Settled() says true when it has come to
  // its end, or the error that came up in it, also later. One call at a time, and none on what is not settled, but
  // Abort.
  virtual absl::StatusOr<Comm> Init(const std::string& id, int rank) = 0;
  virtual absl::StatusOr<bool> Settled(Comm comm) = 0;
  // To and from the other rank, device memory. Once settled it is in `stream`.
  virtual absl::Status Send(Comm comm, const void* bytes, size_t size, Stream stream) = 0;
  virtual absl::Status Recv(Comm comm, void* into, size_t size, Stream stream) = 0;
  // Nothing is under way: ends in order. Once settled, Destroy.
  virtual absl::Status Finalize(Comm comm) = 0;
  virtual void Destroy(Comm comm) = 0;
  // Whatever is under way: it ends soon after, and the communicator is gone.
  virtual void Abort(Comm comm) = 0;

  virtual absl::StatusOr<Stream> NewStream() = 0;  // of high priority
  virtual void EndStream(Stream stream) = 0;
  virtual absl::StatusOr<Mark> Record(Stream stream) = 0;
  virtual absl::StatusOr<bool> Passed(Mark mark) = 0;
  virtual void EndMark(Mark mark) = 0;
  // Device memory, in the order of `stream`: to wait for the whole GPU may be to wait for another link's peer.
  virtual absl::StatusOr<void*> NewScratch(size_t bytes, Stream stream) = 0;
  virtual void EndScratch(void* scratch, Stream stream) = 0;
};

}  // namespace runahead
