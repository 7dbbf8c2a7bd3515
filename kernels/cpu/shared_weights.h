// Packed weights that processes of one host have in common: the first packs them into a file in memory, the others map
// it, to read only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/memory.h"
#include "kernels/base/mutex.h"
#include "kernels/cpu/shared_file.h"

namespace runahead {

// Of one device. Thread-safe. What it has mapped may outlive it, and keeps the file.
//
// The file: a header, a directory of named blocks, and the blocks. The header is written last, so a file whose packer
// was killed is nobody's weights: whoever comes next packs anew. The directory has a sum of each block, and Open
// compares all of them with what is there. Who finds the file complete adds nothing to it: what is not in it has to be
// packed into memory of its own.
class SharedWeights {
 public:
  struct Place {
    std::string path;      // a folder in memory, such as /dev/shm, or a file that is there already
    std::string identity;  // whose weights, in which layout, by which program: who says another does not share
    int64_t bytes = 0;     // about what will be packed
    int threads = 1;       // as many sum the blocks
    // Called before a wait for another process that packs.
    std::function<void()> on_wait = [] {};
  };
  // The file is locked from here to the end of what is mapped. RESOURCE_EXHAUSTED with both sizes where the packed
  // weights have no room at `path`; FAILED_PRECONDITION for a file of others' weights; DATA_LOSS, with what is damaged,
  // for a damaged file that others use, who find a mark in it then (where nobody does, it is packed anew); errors of
  // SharedFile.
  static absl::StatusOr<std::shared_ptr<SharedWeights>> Open(const Place& place);
  ~SharedWeights();

  // Whether this process is the one that packs. It calls Complete when all is packed, or Abandon.
  bool packs() const { return packs_; }
  const std::string& path() const { return path_; }
  // Where this process packs because an older file was damaged: which part was damaged. Else empty.
  const std::string& damage() const { return damage_; }

  struct Block {
    BufferRef memory;  // at a multiple of 64 bytes
    bool filled;       // as it was packed, and not to be written; else to be filled before Complete
  };
  // The block of that name. Nothing where there is none and none can be made: the caller then takes memory of its own,
  // and so does another that wants a block that is there already from this process while it packs.
  std::optional<Block> Find(const std::string& name, size_t bytes) RUNAHEAD_EXCLUDES(mu_);
  // `contents` says what bytes of the model this process has: an identity may be that of a file that was changed since.
  // The worker that packs lets others read, and no longer writes itself; what found no room stays out of the file. A
  // worker that reads gets FAILED_PRECONDITION where the packer had other contents: what it found is of another model.
  absl::Status Complete(const std::string& contents) RUNAHEAD_EXCLUDES(mu_);
  // Where another process has marked the file as damaged since: compares all sums with what is there now. DATA_LOSS,
  // with what is damaged, where this process' weights are; else the mark goes. Costs no more than a read without a
  // mark.
  absl::Status CheckMark() RUNAHEAD_EXCLUDES(mu_);
  // Gives the file up, with no block of it in use.
  void Abandon() RUNAHEAD_EXCLUDES(mu_);

  // Of the blocks found so far, and of those that there was no room for.
  size_t shared_bytes() const RUNAHEAD_EXCLUDES(mu_);
  size_t refused_bytes() const RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Entry;  // of the directory
  struct Header;
  class Mapping;  // of a block
  enum class Found { kNothing, kOurs, kOthers, kDamaged };

  SharedWeights(std::shared_ptr<SharedFile> file, bool packs, int threads);
  // Where it is kDamaged, `damage_` says what of it is. RESOURCE_EXHAUSTED where it cannot be mapped.
  absl::StatusOr<Found> Read(const std::string& identity);
  Found Damaged(std::string what);
  // Of all blocks, by their bytes in the file.
  absl::StatusOr<std::vector<uint64_t>> SumEntries() const RUNAHEAD_REQUIRES(mu_);
  // The block that is not as it was packed; null: all are.
  absl::StatusOr<const Entry*> DamagedEntry() const RUNAHEAD_REQUIRES(mu_);
  absl::Status Begin(const Place& place);
  std::optional<Block> Add(const std::string& name, size_t bytes) RUNAHEAD_REQUIRES(mu_);
  std::shared_ptr<Mapping> Map(const Entry& entry, bool writable) const RUNAHEAD_REQUIRES(mu_);

  const std::string path_;
  const bool packs_;
  const int threads_;
  mutable Mutex mu_;
  std::shared_ptr<SharedFile> file_ RUNAHEAD_GUARDED_BY(mu_);  // null once it is given up
  std::string identity_;
  std::string damage_;
  std::string contents_;                       // of what was found complete
  bool open_ RUNAHEAD_GUARDED_BY(mu_) = true;  // blocks may be found, or added where it packs
  std::vector<Entry> entries_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<Mapping>> written_ RUNAHEAD_GUARDED_BY(mu_);
  size_t end_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // of the last block
  size_t shared_bytes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  size_t refused_bytes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
