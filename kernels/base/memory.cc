#include "kernels/base/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunk = 8 * kHugePage;  // of an arena

class HostBuffer : public Buffer {
 public:
  HostBuffer(std::byte* data, size_t size, size_t counted, std::shared_ptr<MemoryBudget> budget)
      : Buffer(data, size), counted_(counted), budget_(std::move(budget)) {}
  ~HostBuffer() override {
    std::free(data_);
    if (budget_ != nullptr) budget_->GiveBack(counted_);
  }

 private:
  const size_t counted_;
  const std::shared_ptr<MemoryBudget> budget_;
};

}  // namespace

absl::Status MemoryBudget::Take(size_t bytes) {
  size_t used = used_.load();
  do {
    if (limit_ != 0 && (bytes > limit_ || used > limit_ - bytes)) {
      return absl::ResourceExhaustedError(absl::StrCat("the device memory budget of ", limit_, " bytes has ",
                                                       limit_ - std::min(used, limit_), " left, and ", bytes,
                                                       " are wanted: raise the budget or load a smaller model"));
    }
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Buffer>> AllocateHostMemory(size_t bytes, std::shared_ptr<MemoryBudget> budget) {
  constexpr size_t kMost = size_t{1} << 46;
  if (bytes > kMost) return absl::ResourceExhaustedError(absl::StrCat("no machine has ", bytes, " bytes of memory"));
  const bool large = bytes >= kHugePage;
  const size_t counted = RoundUp(std::max<size_t>(bytes, 1), kAlignment);
  if (budget != nullptr) RUNAHEAD_RETURN_IF_ERROR(budget->Take(counted));
  void* data = std::aligned_alloc(large ? kHugePage : kAlignment, large ? RoundUp(bytes, kHugePage) : counted);
  if (data == nullptr) {
    if (budget != nullptr) budget->GiveBack(counted);
    return absl::ResourceExhaustedError(absl::StrCat("the system has no ", bytes, " bytes of memory left"));
  }
  if (large) madvise(data, RoundUp(bytes, kHugePage), MADV_HUGEPAGE);  // a hint: failing only costs speed
  return std::make_shared<HostBuffer>(static_cast<std::byte*>(data), bytes, counted, std::move(budget));
}

ChunkAllocator HostChunks(std::shared_ptr<MemoryBudget> budget) {
  return [budget = std::move(budget)](size_t bytes) { return AllocateHostMemory(bytes, budget); };
}

absl::StatusOr<BufferRef> Arena::Allocate(size_t bytes) {
  bytes = RoundUp(std::max<size_t>(bytes, 1), kAlignment);
  if (bytes > kChunk / 2) {
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> own, allocate_(bytes));
    return BufferRef::Whole(std::move(own));
  }
  MutexLock lock(mu_);
  if (chunk_.size < bytes) {
    // A budget that a whole chunk would break may still hold the block.
    auto chunk = allocate_(kChunk);
    if (!chunk.ok()) chunk = allocate_(bytes);
    if (!chunk.ok()) return chunk.status();
    chunk_ = BufferRef::Whole(*std::move(chunk));
  }
  BufferRef block = chunk_.Slice(0, bytes);
  chunk_ = chunk_.Slice(bytes, chunk_.size - bytes);
  return block;
}

}  // namespace runahead
