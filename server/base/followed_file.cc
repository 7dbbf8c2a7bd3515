#include "server/base/followed_file.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

// Whether it is something that is no file: a pipe, a folder.
bool IsOther(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  return type != std::filesystem::file_type::regular && type != std::filesystem::file_type::not_found;
}

}  // namespace

FollowedFile::FollowedFile(std::string path, int64_t max_bytes)
    : path_(std::move(path)), max_bytes_(max_bytes), text_(ReadTextFile(path_, max_bytes)) {
  followed_ = !IsOther(path_);  // a pipe has said all
}

bool FollowedFile::Look(absl::Time now) {
  if (!followed_ || now < next_look_) return false;
  next_look_ = now + kFollowPeriod;
  // Text is compared, not time and size: these may stay the same over a change, and change without one.
  absl::StatusOr<std::string> text = absl::FailedPreconditionError(absl::StrCat(path_, " is no file any more"));
  if (!IsOther(path_)) text = ReadTextFile(path_, max_bytes_);  // a pipe would be waited for
  if (text == text_) return false;
  text_ = std::move(text);
  return true;
}

}  // namespace runahead
