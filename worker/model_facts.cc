#include "worker/model_facts.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

// Who writes to a file, or puts another in its place, changes these.
std::string NumbersOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return "";
  return absl::StrCat(info.st_dev, ":", info.st_ino, ":", info.st_size, ":", info.st_mtim.tv_sec, ".",
                      info.st_mtim.tv_nsec, ":", info.st_ctim.tv_sec, ".", info.st_ctim.tv_nsec);
}

}  // namespace

absl::StatusOr<OpenedModel> OpenModel(const std::string& path) {
  const std::string before = NumbersOf(path);
  OpenedModel opened;
  RUNAHEAD_ASSIGN_OR_RETURN(opened.file, OpenGguf(path));
  opened.facts.mostly_quantised = MostlyQuantised(*opened.file);
  for (const FileTensor& tensor : opened.file->tensors()) {
    opened.facts.tensor_bytes += static_cast<int64_t>(tensor.data.size());
  }
  if (NumbersOf(path) == before) {
    opened.facts.identity = absl::StrCat(absl::Hex(opened.file->fingerprint(), absl::kZeroPad16), " ", before);
  }
  return opened;
}

}  // namespace runahead
