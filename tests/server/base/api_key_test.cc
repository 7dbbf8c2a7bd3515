#include "server/base/api_key.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST(ApiKey, HasThe256BitsThatWereDrawn) {
  const std::string key = DrawApiKey();
  EXPECT_THAT(key, MatchesRegex("runahead_[0-9a-f]{64}"));
  EXPECT_NE(key, DrawApiKey());
}

TEST(ApiKey, IsHashedBySha256) {  // FIPS 180-2, appendix B.1; so `printf %s KEY | sha256sum` makes an entry, too
  EXPECT_EQ(ApiKeyHashText(HashOfApiKey("abc")),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_NE(HashOfApiKey("abc"), HashOfApiKey("abd"));
}

TEST(ApiKey, AHashIsReadAsItIsWritten) {
  const std::string hash = HashOfApiKey("a key");
  EXPECT_EQ(*ParseApiKeyHash(ApiKeyHashText(hash)), hash);
  EXPECT_EQ(*ParseApiKeyHash(absl::StrCat("sha256:", std::string(64, 'F'))), std::string(32, '\xff'));
}

TEST(ApiKey, WhatIsNoHashIsRefusedAndNotRepeated) {
  const std::string digits(64, '0');
  for (const std::string& bad : {std::string(), digits, "sha256:" + digits.substr(1), "sha256:" + digits + "0",
                                 "sha512:" + digits, "sha256:x" + digits.substr(1), std::string("runahead_secret")}) {
    const absl::Status status = ParseApiKeyHash(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace runahead
