#include "worker/format/gguf_split.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "worker/format/gguf.h"
#include "worker/format/quoted.h"
#include "xxhash.h"

namespace runahead {
namespace {

constexpr char kNumber[] = "split.no";  // from 0
constexpr char kCount[] = "split.count";
constexpr char kTensors[] = "split.tensors.count";  // of all files
// The names have five digits; far fewer files are real, and each takes addresses and a descriptor for a moment.
constexpr uint64_t kMostFiles = 4096;

std::string Ending(uint64_t file, uint64_t files) {
  return absl::StrFormat("-%05d-of-%05d.gguf", file, files);
}

absl::Status RefuseSplit(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
}

// A key of the split; 0 where there is none.
absl::StatusOr<uint64_t> SplitKey(const ModelFile& file, absl::string_view key) {
  if (!file.Has(key)) return 0;
  return file.GetUint(key);
}

}  // namespace

std::string WithoutGgufEnding(absl::string_view path) {
  if (!absl::ConsumeSuffix(&path, ".gguf")) return std::string(path);
  constexpr absl::string_view kForm = "-00000-of-00000";
  if (path.size() <= kForm.size()) return std::string(path);
  const absl::string_view end = path.substr(path.size() - kForm.size());
  for (size_t i = 0; i < kForm.size(); ++i) {
    if (kForm[i] == '0' ? !absl::ascii_isdigit(end[i]) : end[i] != kForm[i]) return std::string(path);
  }
  return std::string(path.substr(0, path.size() - kForm.size()));
}

// Collects the files of one model. Used once.
class GgufSplit {
 public:
  static absl::StatusOr<std::shared_ptr<const ModelFile>> Open(std::shared_ptr<const ModelFile> first) {
    const absl::StatusOr<uint64_t> files = SplitKey(*first, kCount);
    if (!files.ok()) return files.status();
    if (*files <= 1) return first;
    GgufSplit split(*files);
    absl::Status status = split.CheckFirst(*first);
    if (!status.ok()) return status;
    const std::string path = first->path();
    split.Add(std::move(first));
    for (uint64_t file = 2; status.ok() && file <= *files; ++file) status = split.OpenOther(path, file);
    if (status.ok()) status = split.Join();
    if (!status.ok()) return status;
    return std::shared_ptr<const ModelFile>(std::move(split.whole_));
  }

 private:
  using Files = std::vector<std::shared_ptr<const ModelFile>>;

  explicit GgufSplit(uint64_t count)
      : count_(count), files_(new Files), whole_(new ModelFile(ModelFile::Container::kGguf)) {}

  absl::Status CheckFirst(const ModelFile& first) const {
    const std::string& path = first.path();
    if (count_ > kMostFiles) {
      return RefuseSplit(path, absl::StrCat("metadata key '", kCount, "' is ", count_, "; at most ", kMostFiles,
                                            " files of a model are read"));
    }
    const absl::StatusOr<uint64_t> number = SplitKey(first, kNumber);
    if (!number.ok()) return number.status();
    if (*number != 0) {
      return RefuseSplit(path,
                         absl::StrCat("this is file ", *number + 1, " of the ", count_, " of a model: give the first, ",
                                      WithoutGgufEnding(path), Ending(1, count_)));
    }
    if (absl::EndsWith(path, Ending(1, count_))) return absl::OkStatus();
    return RefuseSplit(path,
                       absl::StrCat("this is the first of the ", count_,
                                    " files of a model, and they are found by their names: its own must end with ",
                                    Ending(1, count_)));
  }

  absl::Status OpenOther(const std::string& first, uint64_t file) {
    const std::string path = absl::StrCat(WithoutGgufEnding(first), Ending(file, count_));
    absl::StatusOr<std::shared_ptr<const ModelFile>> opened = OpenGgufFile(path);
    if (absl::IsNotFound(opened.status())) {
      return absl::NotFoundError(
          absl::StrCat(path, " is missing: ", first, " says that the model is in ", count_, " files"));
    }
    if (!opened.ok()) return opened.status();
    const absl::StatusOr<uint64_t> number = SplitKey(**opened, kNumber), count = SplitKey(**opened, kCount);
    if (!number.ok()) return number.status();
    if (!count.ok()) return count.status();
    if (*number != file - 1 || *count != count_) {
      return RefuseSplit(
          path, absl::StrCat("its metadata keys '", kNumber, "' and '", kCount, "' are ", *number, " and ", *count,
                             "; by its name and ", first, " they must be ", file - 1, " and ", count_));
    }
    Add(*std::move(opened));
    return absl::OkStatus();
  }

  void Add(std::shared_ptr<const ModelFile> file) { files_->push_back(std::move(file)); }

  absl::Status Join() {
    const ModelFile& first = *files_->front();
    whole_->path_ = first.path_;
    whole_->metadata_ = first.metadata_;
    std::vector<uint64_t> fingerprints;
    for (const std::shared_ptr<const ModelFile>& file : *files_) {
      for (const FileTensor& tensor : file->tensors_) {
        if (whole_->tensor_index_.contains(tensor.name)) {
          return RefuseSplit(file->path_, absl::StrCat("tensor ", Quoted(tensor.name), " is in a file before it, too"));
        }
        whole_->tensors_.push_back(tensor);
        whole_->tensor_index_.emplace(file->tensor_index_.find(tensor.name)->first, whole_->tensors_.size() - 1);
      }
      RemarkKeys(*file);
      const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
      append(whole_->remarks_, file->remarks_);
      append(whole_->parts_, file->parts_);
      append(whole_->weight_files_, file->weight_files_);
      fingerprints.push_back(file->fingerprint_);
    }
    whole_->fingerprint_ = XXH64(fingerprints.data(), fingerprints.size() * sizeof(uint64_t), /*seed=*/0);
    whole_->owner_ = files_;
    return CheckTensorCount(first);
  }

  // All keys are in the first file; what another says besides is not read.
  void RemarkKeys(const ModelFile& file) {
    for (const auto& [key, value] : file.metadata_) {
      if (absl::StartsWith(key, "split.") || absl::StartsWith(key, "general.")) continue;
      const auto in_first = whole_->metadata_.find(key);
      if (in_first != whole_->metadata_.end() && in_first->second.bytes == value.bytes) continue;
      whole_->remarks_.push_back(absl::StrCat(file.path_, ": metadata key ", Quoted(key),
                                              " is not read here, for the first file does not say the same"));
    }
  }

  absl::Status CheckTensorCount(const ModelFile& first) const {
    if (!first.Has(kTensors)) return absl::OkStatus();
    const absl::StatusOr<uint64_t> said = first.GetUint(kTensors);
    if (!said.ok()) return said.status();
    if (*said == whole_->tensors_.size()) return absl::OkStatus();
    return RefuseSplit(first.path_, absl::StrCat("metadata key '", kTensors, "' is ", *said, ", and the ", count_,
                                                 " files have ", whole_->tensors_.size(), " tensors"));
  }

  const uint64_t count_;
  const std::shared_ptr<Files> files_;
  std::shared_ptr<ModelFile> whole_;
};

absl::StatusOr<std::shared_ptr<const ModelFile>> WithOtherFiles(std::shared_ptr<const ModelFile> first) {
  return GgufSplit::Open(std::move(first));
}

}  // namespace runahead
