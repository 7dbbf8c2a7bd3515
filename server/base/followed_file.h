// A small file that is read again when it changes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace runahead {

inline constexpr absl::Duration kFollowPeriod = absl::Seconds(1);

// For one thread at a time.
class FollowedFile {
 public:
  // Of nothing: it never changes.
  FollowedFile() = default;
  // Reads `path`; what it says is in text(). What is no regular file, as a pipe, is read this once.
  FollowedFile(std::string path, int64_t max_bytes);

  const std::string& path() const { return path_; }

  // As of the last look. Errors are ReadTextFile's; FAILED_PRECONDITION: it is no regular file any more.
  const absl::StatusOr<std::string>& text() const { return text_; }

  // Looks at the file if the last look was kFollowPeriod ago or longer; reads it, so others must not wait for it.
  // Whether text() is another now.
  bool Look(absl::Time now);

 private:
  std::string path_;
  int64_t max_bytes_ = 0;
  bool followed_ = false;
  absl::Time next_look_ = absl::InfinitePast();
  absl::StatusOr<std::string> text_;
};

}  // namespace runahead
