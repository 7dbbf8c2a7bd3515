// Several files as the bytes of one, in the zip format.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace runahead {

struct ZipEntry {
  absl::string_view name;  // UTF-8, at most 65,535 bytes; no two are equal
  absl::string_view bytes;
};

// The archive; the same for the same entries. They are stored as they are, so that any reader can take them out, and
// have no date: all are of 1980-01-01, with which the format begins. CHECKs that all of it has less than 4 GiB, and
// that there are at most 65,534 entries: beyond that the format is another.
std::string ZipArchive(absl::Span<const ZipEntry> entries);

}  // namespace runahead
