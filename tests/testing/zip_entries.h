// What is in a zip, read by its directory as any reader does.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "kernels/base/status_macros.h"

namespace runahead {

// CRC-32 as the format has it, a bit at a time.
inline uint32_t PlainCrc32(const std::string& bytes) {
  uint32_t sum = 0xffffffff;
  for (const char byte : bytes) {
    sum ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ (sum % 2 * 0xedb88320);
  }
  return ~sum;
}

// By name. CHECKs what an archive of stored entries, without a comment, has to be.
inline std::map<std::string, std::string> ZipEntries(const std::string& archive) {
  const auto number = [&archive](size_t at, size_t bytes) {
    RUNAHEAD_CHECK(at + bytes <= archive.size());
    size_t value = 0;
    for (size_t i = bytes; i > 0; --i) value = value << 8 | static_cast<unsigned char>(archive[at + i - 1]);
    return value;
  };
  RUNAHEAD_CHECK(archive.size() >= 22);
  const size_t end = archive.size() - 22;
  RUNAHEAD_CHECK(archive.compare(end, 4, "PK\x05\x06") == 0 && number(end + 20, 2) == 0);
  std::map<std::string, std::string> entries;
  size_t at = number(end + 16, 4);
  for (size_t left = number(end + 10, 2); left > 0; --left) {
    RUNAHEAD_CHECK(archive.compare(at, 4, "PK\x01\x02") == 0 && number(at + 10, 2) == 0);
    const size_t sum = number(at + 16, 4), size = number(at + 20, 4), name = number(at + 28, 2);
    RUNAHEAD_CHECK(size == number(at + 24, 4));
    const size_t local = number(at + 42, 4);
    RUNAHEAD_CHECK(archive.compare(local, 4, "PK\x03\x04") == 0);
    // Versions, flags, dates, sums and sizes are the same in both places.
    RUNAHEAD_CHECK(archive.compare(local + 4, 26, archive, at + 6, 26) == 0);
    RUNAHEAD_CHECK(archive.compare(local + 30, name, archive, at + 46, name) == 0);
    const std::string bytes = archive.substr(local + 30 + name, size);
    RUNAHEAD_CHECK(bytes.size() == size && PlainCrc32(bytes) == sum);
    RUNAHEAD_CHECK(entries.emplace(archive.substr(at + 46, name), bytes).second);
    at += 46 + name;
  }
  RUNAHEAD_CHECK(at == end);
  return entries;
}

}  // namespace runahead
