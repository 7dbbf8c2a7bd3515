#include "server/base/zip_archive.h"

#include <map>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/zip_entries.h"

namespace runahead {
namespace {

TEST(ZipArchive, WhatWentInComesOut) {
  const std::map<std::string, std::string> files = {{"empty", ""},
                                                    {"folder/Größe.json", "{}\n"},
                                                    {"bytes", std::string("\0\xff PK\x05\x06", 7)},
                                                    {"long", std::string(200000, 'x')}};
  std::vector<ZipEntry> entries;
  for (const auto& [name, bytes] : files) entries.push_back({name, bytes});
  EXPECT_EQ(ZipEntries(ZipArchive(entries)), files);
}

TEST(ZipArchive, NothingIsAnArchiveToo) {
  EXPECT_TRUE(ZipEntries(ZipArchive({})).empty());
}

// Date and all: whoever asks twice may compare.
TEST(ZipArchive, HasTheBytesThatTheFormatSays) {
  const std::string fields("\x14\0\0\x08\0\0\0\0\x21\0\x43\xbe\xb7\xe8\1\0\0\0\1\0\0\0\1\0\0\0", 26);  // CRC-32 of "a"
  const std::string local = std::string("PK\3\4") + fields + "na";
  const std::string central =
      std::string("PK\1\2\x14\3", 6) + fields + std::string("\0\0\0\0\0\0\0\0\xa4\x81\0\0\0\0", 14) + "n";
  const std::string end = std::string("PK\5\6\0\0\0\0\1\0\1\0", 12) + std::string("\x2f\0\0\0\x20\0\0\0\0\0", 10);
  EXPECT_EQ(ZipArchive({{"n", "a"}}), local + central + end);
}

}  // namespace
}  // namespace runahead
