// What fuzz targets share. A target is one file: it defines Fuzz, which feeds one input to public functions of the
// product and checks what they promise of any input, with RUNAHEAD_CHECK. CONTRIBUTING.md says how to run them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/base/status_macros.h"  // RUNAHEAD_CHECK, for targets

namespace runahead {

// The target. The bytes lie in a heap block of exactly their size, so that the address sanitizer sees each read beyond.
void Fuzz(std::string_view input);

namespace fuzz {

// Between the pieces of one input. A line of its own, so that texts of several files can be kept and read as one.
inline constexpr std::string_view kBorder = "\n%%\n";

// The first `count` pieces of the input; those that are not there are empty.
std::vector<std::string_view> Pieces(std::string_view input, size_t count);

inline absl::Span<const std::byte> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// An error about input: it begins with `where`, says something, and can stand in one line of a log: it is valid UTF-8
// without control characters, and no longer than a few lines of a page.
void CheckRefusal(const absl::Status& status, std::string_view where);

// A folder of this process, empty, which goes with it.
const std::string& Folder();
// Writes a file into it, in place of one of that name, and gives its path.
std::string WriteFile(const std::string& name, std::string_view content);

}  // namespace fuzz
}  // namespace runahead
