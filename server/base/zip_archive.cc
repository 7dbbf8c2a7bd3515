#include "server/base/zip_archive.h"

#include <zlib.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEndOfDirectory = 0x06054b50;
constexpr uint16_t kVersion = 20;  // 2.0, the oldest that readers still ask for
constexpr uint16_t kMadeOnUnix = 3 << 8 | kVersion;
constexpr uint16_t kNamesAreUtf8 = 1 << 11;
constexpr uint16_t kStored = 0;
constexpr uint16_t kMidnight = 0, kFirstDay = 1 << 5 | 1;  // of January 1980
constexpr uint32_t kPlainFile = 0100644u << 16;            // what it may be used for, as Unix says it

void Add16(uint16_t value, std::string& to) {
  to += static_cast<char>(value & 0xff);
  to += static_cast<char>(value >> 8);
}

void Add32(uint32_t value, std::string& to) {
  Add16(static_cast<uint16_t>(value & 0xffff), to);
  Add16(static_cast<uint16_t>(value >> 16), to);
}

// What both headers of an entry say, in the same order.
void AddFields(const ZipEntry& entry, uint32_t sum, std::string& to) {
  Add16(kVersion, to);
  Add16(kNamesAreUtf8, to);
  Add16(kStored, to);
  Add16(kMidnight, to);
  Add16(kFirstDay, to);
  Add32(sum, to);
  Add32(static_cast<uint32_t>(entry.bytes.size()), to);  // as it lies here
  Add32(static_cast<uint32_t>(entry.bytes.size()), to);  // as it is taken out
  Add16(static_cast<uint16_t>(entry.name.size()), to);
  Add16(0, to);  // bytes of what else is said
}

void CheckFits(absl::Span<const ZipEntry> entries) {
  constexpr uint64_t kMostForHeaders = 256;  // of one entry, beside its name
  uint64_t bytes = 0;
  for (const ZipEntry& entry : entries) {
    RUNAHEAD_CHECK(entry.name.size() <= UINT16_MAX);
    bytes += kMostForHeaders + 2 * entry.name.size() + entry.bytes.size();
  }
  RUNAHEAD_CHECK(bytes < UINT32_MAX && entries.size() < UINT16_MAX);
}

}  // namespace

std::string ZipArchive(absl::Span<const ZipEntry> entries) {
  CheckFits(entries);
  std::string archive, directory;
  for (const ZipEntry& entry : entries) {
    const auto* bytes = reinterpret_cast<const Bytef*>(entry.bytes.data());
    const auto sum = static_cast<uint32_t>(crc32_z(0, bytes, entry.bytes.size()));
    const auto begin = static_cast<uint32_t>(archive.size());
    Add32(kLocalHeader, archive);
    AddFields(entry, sum, archive);
    absl::StrAppend(&archive, entry.name, entry.bytes);
    Add32(kCentralHeader, directory);
    Add16(kMadeOnUnix, directory);
    AddFields(entry, sum, directory);
    Add16(0, directory);  // bytes of a comment
    Add16(0, directory);  // the disk
    Add16(0, directory);  // neither text nor not
    Add32(kPlainFile, directory);
    Add32(begin, directory);
    absl::StrAppend(&directory, entry.name);
  }
  const auto begin = static_cast<uint32_t>(archive.size());
  const auto size = static_cast<uint32_t>(directory.size());
  archive += directory;
  Add32(kEndOfDirectory, archive);
  Add32(0, archive);  // this disk, and that of the directory
  Add16(static_cast<uint16_t>(entries.size()), archive);
  Add16(static_cast<uint16_t>(entries.size()), archive);
  Add32(size, archive);
  Add32(begin, archive);
  Add16(0, archive);  // bytes of a comment
  return archive;
}

}  // namespace runahead
