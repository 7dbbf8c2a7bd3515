#include "worker/model/weights_hash.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/base/cpu_limit.h"
#include "xxhash.h"

namespace runahead {
namespace {

// Small enough to share the work, large enough that nobody waits for the lock. It is part of what is hashed.
constexpr size_t kPieceBytes = size_t{4} << 20;
// One thread reads mapped pages at about 8 GB/s: more than these would only take cores from loading.
constexpr int kMostThreads = 4;

}  // namespace

WeightsHash::WeightsHash(std::shared_ptr<const ModelFile> file)
    : WeightsHash(std::move(file), std::min(UsableCores(), kMostThreads)) {}

WeightsHash::WeightsHash(std::shared_ptr<const ModelFile> file, int threads) : file_(std::move(file)) {
  for (const absl::Span<const std::byte> bytes : file_->weight_files()) {
    for (size_t at = 0; at < bytes.size(); at += kPieceBytes) pieces_.push_back(bytes.subspan(at, kPieceBytes));
  }
  hashes_.resize(pieces_.size());
  for (int i = 0; i < threads; ++i) team_.emplace_back([this] { Read(); });
}

WeightsHash::~WeightsHash() {
  {
    MutexLock lock(mu_);
    next_ = pieces_.size();
  }
  for (std::thread& thread : team_) thread.join();
}

void WeightsHash::Read() {
  while (true) {
    size_t piece;
    {
      MutexLock lock(mu_);
      if (next_ == pieces_.size()) return;
      piece = next_++;
    }
    const XXH128_hash_t hash = XXH3_128bits(pieces_[piece].data(), pieces_[piece].size());
    hashes_[piece] = {hash.high64, hash.low64};
  }
}

std::string WeightsHash::Wait() {
  for (std::thread& thread : team_) thread.join();
  team_.clear();
  std::vector<uint64_t> numbers;  // sizes of the files, then the hashes of their pieces
  for (const absl::Span<const std::byte> bytes : file_->weight_files()) numbers.push_back(bytes.size());
  for (const auto& [high, low] : hashes_) numbers.insert(numbers.end(), {high, low});
  const XXH128_hash_t all = XXH3_128bits(numbers.data(), numbers.size() * sizeof(uint64_t));
  return absl::StrCat(absl::Hex(all.high64, absl::kZeroPad16), absl::Hex(all.low64, absl::kZeroPad16));
}

}  // namespace runahead
