#include "kernels/cpu/shared_weights.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/block_sums.h"
#include "kernels/cpu/file_view.h"

namespace runahead {
namespace {

constexpr char kPrefix[] = "runahead-weights-";
constexpr char kMagic[8] = {'R', 'A', 'W', 'E', 'I', 'G', 'H', 'T'};
// Raised with every change of what lies in blocks or where, for builds that cannot be told apart.
constexpr uint32_t kLayoutVersion = 3;
constexpr size_t kPageBytes = 4096;
// Of processes that waited for one that was killed, each sees that the others have the file locked for a moment.
constexpr int kMostAttempts = 10'000;
constexpr absl::Duration kAttemptPeriod = absl::Milliseconds(1);
constexpr size_t kDirectoryAt = kPageBytes;
// Behind the header, 0 at first: others than the packer write it.
constexpr uint64_t kDamagedMark = 0x4445474D41444D57;
constexpr size_t kMarkAt = kDirectoryAt - sizeof kDamagedMark;
constexpr size_t kBlocksAt = size_t{512} << 10;  // room for the matrices of a thousand layers

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // since Linux 6.1
#endif

size_t PagesUp(size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// Has the first `bytes` of a file in huge pages, for all who map it, even where the system gives files none by itself:
// without them decode takes a fifth longer. As far as the kernel can.
void GatherIntoHugePages(int fd, size_t bytes) {
  const FileView view({.fd = fd, .bytes = bytes}, PROT_READ);
  if (view.data() != nullptr) madvise(view.data(), bytes, MADV_COLLAPSE);
}

}  // namespace

struct SharedWeights::Entry {
  char name[112];  // zero-terminated
  uint64_t at;
  uint64_t bytes;
  uint64_t sum;  // of the block (SumBlocks)
};

struct SharedWeights::Header {
  char magic[8];
  uint32_t version;
  uint32_t entries;
  uint64_t directory_hash;
  char identity[512];  // zero-terminated
  char contents[64];   // likewise
  uint64_t hash;       // of all before it

  uint64_t Hash() const { return XXH64(this, offsetof(Header, hash), 0); }
};

class SharedWeights::Mapping : public Buffer {
 public:
  Mapping(std::shared_ptr<SharedFile> file, std::unique_ptr<FileView> view, size_t bytes)
      : Buffer(view->data(), bytes), file_(std::move(file)), view_(std::move(view)) {}
  bool Protect() const { return mprotect(data_, size_, PROT_READ) == 0; }

 private:
  const std::shared_ptr<SharedFile> file_;  // whose lock says that it is in use
  const std::unique_ptr<FileView> view_;
};

SharedWeights::SharedWeights(std::shared_ptr<SharedFile> file, bool packs, int threads)
    : path_(file->path()), packs_(packs), threads_(threads), file_(std::move(file)) {}

SharedWeights::~SharedWeights() = default;

absl::StatusOr<std::shared_ptr<SharedWeights>> SharedWeights::Open(const Place& place) {
  if (place.identity.size() >= sizeof(Header::identity)) {
    return absl::InvalidArgumentError("the identity of weights is too long");
  }
  const std::string name =
      absl::StrCat(kPrefix, geteuid(), "-", absl::Hex(XXH64(place.identity.data(), place.identity.size(), 0)));
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (attempt > 0) absl::SleepFor(kAttemptPeriod);
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<SharedFile> file, SharedFile::Open(place.path, kPrefix, name));
    RUNAHEAD_ASSIGN_OR_RETURN(const SharedFile::Lock lock, file->Take(place.on_wait));
    if (lock == SharedFile::Lock::kRemoved) continue;
    const bool alone = lock == SharedFile::Lock::kWrite;
    std::shared_ptr<SharedWeights> weights(new SharedWeights(file, /*packs=*/false, place.threads));
    RUNAHEAD_ASSIGN_OR_RETURN(const Found found, weights->Read(place.identity));
    switch (found) {
      case Found::kOurs:
        if (alone) RUNAHEAD_RETURN_IF_ERROR(file->Share());
        return weights;
      case Found::kOthers:
        return absl::FailedPreconditionError(
            absl::StrCat(file->path(), " has weights of another model, numerics or build"));
      case Found::kDamaged:
        if (alone) break;
        file->Write(kMarkAt, &kDamagedMark, sizeof kDamagedMark).IgnoreError();
        return absl::DataLossError(absl::StrCat(file->path(), " is damaged: ", weights->damage_,
                                                "; those who use it are told: it is packed anew when they have gone"));
      case Found::kNothing:
        if (!alone) continue;  // whoever packed has ended before it was done, and somebody else waited, too
        break;
    }
    const std::string damage = weights->damage_;
    weights.reset(new SharedWeights(std::move(file), /*packs=*/true, place.threads));
    weights->damage_ = damage;
    RUNAHEAD_RETURN_IF_ERROR(weights->Begin(place));
    return weights;
  }
  return absl::UnavailableError(absl::StrCat(place.path, ": others use a file of weights that is not complete"));
}

SharedWeights::Found SharedWeights::Damaged(std::string what) {
  damage_ = std::move(what);
  return Found::kDamaged;
}

absl::StatusOr<SharedWeights::Found> SharedWeights::Read(const std::string& identity) {
  MutexLock lock(mu_);
  const int fd = file_->fd();
  Header header = {};
  struct stat info;
  if (fstat(fd, &info) != 0) return Damaged("its size cannot be read");
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return Found::kNothing;
  if (pread(fd, &header, sizeof header, 0) != sizeof header) return Damaged("its header cannot be read");
  if (header.magic[0] == 0) return Found::kNothing;
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.hash != header.Hash() ||
      header.version != kLayoutVersion || header.entries > (kBlocksAt - kDirectoryAt) / sizeof(Entry)) {
    return Damaged("the header is not as it was written");
  }
  const auto text = [](const auto& field) { return std::string(field, strnlen(field, sizeof field)); };
  if (text(header.identity) != identity) return Found::kOthers;
  contents_ = text(header.contents);
  entries_.resize(header.entries);
  const size_t bytes = entries_.size() * sizeof(Entry);
  if (pread(fd, entries_.data(), bytes, kDirectoryAt) != static_cast<ssize_t>(bytes) ||
      XXH64(entries_.data(), bytes, 0) != header.directory_hash) {
    return Damaged("the directory of blocks is not as it was written");
  }
  end_ = kBlocksAt;
  for (const Entry& entry : entries_) {
    if (entry.at < kBlocksAt || entry.at > size || entry.bytes > size - entry.at) {
      return Damaged(absl::StrCat("the file ends before ", entry.name, " does"));
    }
    end_ = std::max<size_t>(end_, entry.at + entry.bytes);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const Entry* const damaged, DamagedEntry());
  if (damaged != nullptr) return Damaged(absl::StrCat(damaged->name, " is not as it was packed"));
  return Found::kOurs;
}

absl::StatusOr<const SharedWeights::Entry*> SharedWeights::DamagedEntry() const {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<uint64_t> sums, SumEntries());
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (sums[i] != entries_[i].sum) return &entries_[i];
  }
  return nullptr;
}

absl::StatusOr<std::vector<uint64_t>> SharedWeights::SumEntries() const {
  const FileView view({.fd = file_->fd(), .bytes = end_}, PROT_READ);
  if (view.data() == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(path_, ": the system has no more addresses to map it"));
  }
  std::vector<absl::Span<const std::byte>> blocks;
  for (const Entry& entry : entries_) blocks.emplace_back(view.data() + entry.at, entry.bytes);
  return SumBlocks(blocks, threads_);
}

absl::Status SharedWeights::Begin(const Place& place) {
  MutexLock lock(mu_);
  RUNAHEAD_RETURN_IF_ERROR(file_->Clear());
  RUNAHEAD_ASSIGN_OR_RETURN(const int64_t room, file_->Room());
  if (place.bytes > room - static_cast<int64_t>(kBlocksAt)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(place.path, " has ", room, " bytes free, and the packed weights take about ", place.bytes));
  }
  RUNAHEAD_RETURN_IF_ERROR(file_->Reserve(0, kBlocksAt));
  identity_ = place.identity;
  end_ = kBlocksAt;
  return absl::OkStatus();
}

std::optional<SharedWeights::Block> SharedWeights::Find(const std::string& name, size_t bytes) {
  MutexLock lock(mu_);
  if (!open_ || bytes == 0) return std::nullopt;
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return name == e.name; });
  std::optional<Block> block;
  if (packs_) {
    if (entry == entries_.end()) block = Add(name, bytes);
  } else if (entry != entries_.end() && entry->bytes == bytes) {
    if (std::shared_ptr<Mapping> mapping = Map(*entry, /*writable=*/false)) {
      block = {BufferRef::Whole(std::move(mapping)), /*filled=*/true};
    }
  }
  (block.has_value() ? shared_bytes_ : refused_bytes_) += bytes;
  return block;
}

std::optional<SharedWeights::Block> SharedWeights::Add(const std::string& name, size_t bytes) {
  Entry entry = {.name = {}, .at = end_, .bytes = bytes, .sum = 0};
  if (name.size() >= sizeof entry.name || entries_.size() == (kBlocksAt - kDirectoryAt) / sizeof(Entry)) {
    return std::nullopt;
  }
  std::memcpy(entry.name, name.data(), name.size());
  if (!file_->Reserve(end_, bytes).ok()) return std::nullopt;
  std::shared_ptr<Mapping> mapping = Map(entry, /*writable=*/true);
  if (mapping == nullptr) return std::nullopt;
  end_ += PagesUp(bytes);
  entries_.push_back(entry);
  written_.push_back(mapping);
  return Block{BufferRef::Whole(std::move(mapping)), /*filled=*/false};
}

// Null where the system has no more addresses or mappings.
std::shared_ptr<SharedWeights::Mapping> SharedWeights::Map(const Entry& entry, bool writable) const {
  auto view = std::make_unique<FileView>(FileView::Range{.fd = file_->fd(), .at = entry.at, .bytes = entry.bytes},
                                         writable ? PROT_READ | PROT_WRITE : PROT_READ);
  if (view->data() == nullptr) return nullptr;
  madvise(view->data(), entry.bytes, MADV_HUGEPAGE);  // a hint: failing only costs speed
  return std::make_shared<Mapping>(file_, std::move(view), entry.bytes);
}

absl::Status SharedWeights::Complete(const std::string& contents) {
  if (contents.size() >= sizeof(Header::contents)) {
    return absl::InvalidArgumentError("what says the contents of weights is too long");
  }
  MutexLock lock(mu_);
  if (!packs_ && contents_ != contents) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " was packed from a model with other contents"));
  }
  if (!packs_ || !open_) return absl::OkStatus();
  open_ = false;
  for (const std::weak_ptr<Mapping>& written : written_) {
    const std::shared_ptr<Mapping> mapping = written.lock();
    if (mapping != nullptr && !mapping->Protect()) return absl::ErrnoToStatus(errno, "cannot protect weights");
  }
  GatherIntoHugePages(file_->fd(), end_);
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<uint64_t> sums, SumEntries());
  for (size_t i = 0; i < sums.size(); ++i) entries_[i].sum = sums[i];
  const size_t directory_bytes = entries_.size() * sizeof(Entry);
  RUNAHEAD_RETURN_IF_ERROR(file_->Write(kDirectoryAt, entries_.data(), directory_bytes));
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kLayoutVersion;
  header.entries = static_cast<uint32_t>(entries_.size());
  header.directory_hash = XXH64(entries_.data(), directory_bytes, 0);
  std::memcpy(header.identity, identity_.data(), identity_.size());
  std::memcpy(header.contents, contents.data(), contents.size());
  header.hash = header.Hash();
  RUNAHEAD_RETURN_IF_ERROR(file_->Write(0, &header, sizeof header));
  return file_->Share();
}

absl::Status SharedWeights::CheckMark() {
  MutexLock lock(mu_);
  uint64_t mark = 0;
  if (file_ == nullptr || pread(file_->fd(), &mark, sizeof mark, kMarkAt) != sizeof mark || mark != kDamagedMark) {
    return absl::OkStatus();
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const Entry* const damaged, DamagedEntry());
  if (damaged != nullptr) {
    return absl::DataLossError(absl::StrCat(path_, " is damaged: ", damaged->name, " is not as it was packed"));
  }
  mark = 0;
  return file_->Write(kMarkAt, &mark, sizeof mark);
}

void SharedWeights::Abandon() {
  MutexLock lock(mu_);
  for (const std::weak_ptr<Mapping>& written : written_) RUNAHEAD_CHECK(written.expired());
  if (packs_ && open_) file_->Clear().IgnoreError();
  open_ = false;
  file_ = nullptr;
}

size_t SharedWeights::shared_bytes() const {
  MutexLock lock(mu_);
  return shared_bytes_;
}

size_t SharedWeights::refused_bytes() const {
  MutexLock lock(mu_);
  return refused_bytes_;
}

}  // namespace runahead
