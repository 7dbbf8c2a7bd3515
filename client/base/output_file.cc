#include "client/base/output_file.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace runahead {

absl::Status CheckOutputFile(const std::string& flag, const std::string& path, const std::string& instead) {
  const auto refuse = [&](auto... texts) { return absl::InvalidArgumentError(absl::StrCat(flag, ": ", texts...)); };
  std::error_code error;
  const std::filesystem::path file(path);
  if (std::filesystem::exists(file, error)) {
    if (!std::filesystem::is_regular_file(file, error)) return refuse(path, " is no regular file");
    if (!instead.empty()) return refuse(path, " exists; ", instead);
  }
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  if (!std::filesystem::is_directory(folder, error)) return refuse("there is no folder ", folder);
  if (access(folder.c_str(), W_OK) != 0) return refuse("nothing may be written in ", folder);
  return absl::OkStatus();
}

}  // namespace runahead
