// The fingerprint of a model's weights: of every byte of the files that hold them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "kernels/base/mutex.h"
#include "worker/format/model_file.h"

namespace runahead {

// Reads the files on threads of its own, in the order in which loading reads them, while it does: each page comes from
// the disk once. What comes out depends on the bytes alone: not on the device, the dtype, what is loaded, or threads.
class WeightsHash {
 public:
  // Begins. `threads` is at least 1.
  WeightsHash(std::shared_ptr<const ModelFile> file, int threads);
  // As many threads as read at the speed of memory, and no more than the process has cores.
  explicit WeightsHash(std::shared_ptr<const ModelFile> file);
  // Where nobody waited for it, it ends early.
  ~WeightsHash();
  WeightsHash(const WeightsHash&) = delete;
  WeightsHash& operator=(const WeightsHash&) = delete;

  // 32 hexadecimal digits, once all is read.
  std::string Wait();

 private:
  void Read() RUNAHEAD_EXCLUDES(mu_);

  const std::shared_ptr<const ModelFile> file_;
  std::vector<absl::Span<const std::byte>> pieces_;
  Mutex mu_;
  size_t next_ RUNAHEAD_GUARDED_BY(mu_) = 0;           // of the pieces
  std::vector<std::pair<uint64_t, uint64_t>> hashes_;  // of each piece; its reader writes it, Wait reads it
  std::vector<std::thread> team_;
};

}  // namespace runahead
