#include "worker/model_facts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/format/mapped_file.h"
#include "worker/format/open_model.h"
#include "xxhash.h"

namespace runahead {
namespace {

// Of the file, or of all that a folder has; empty where one is no longer what was opened.
std::string IdentityOf(const ModelFile& file) {
  std::string numbers;
  for (const ModelFile::Part& part : file.parts()) {
    if (FileNumbers(part.path) != part.numbers) return "";
    absl::StrAppend(&numbers, numbers.empty() ? "" : " ", part.numbers);
  }
  if (file.parts().size() > 1) {  // how long an identity may be does not depend on how many files there are
    const XXH128_hash_t hash = XXH3_128bits(numbers.data(), numbers.size());
    numbers = absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16), absl::Hex(hash.low64, absl::kZeroPad16));
  }
  return absl::StrCat(absl::Hex(file.fingerprint(), absl::kZeroPad16), " ", numbers);
}

}  // namespace

absl::StatusOr<OpenedModel> OpenModel(const std::string& path) {
  OpenedModel opened;
  RUNAHEAD_ASSIGN_OR_RETURN(opened.file, OpenModelFile(path));
  opened.facts.mostly_quantised = MostlyQuantised(*opened.file);
  opened.facts.takes_int8 = CheckTakesInt8(*opened.file);
  for (const FileTensor& tensor : opened.file->tensors()) {
    opened.facts.tensor_bytes += static_cast<int64_t>(tensor.data.size());
  }
  opened.facts.identity = IdentityOf(*opened.file);
  return opened;
}

}  // namespace runahead
