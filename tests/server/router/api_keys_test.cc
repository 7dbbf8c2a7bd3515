#include "server/router/api_keys.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/api_key.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string HashLine(const std::string& key) {
  return ApiKeyHashText(HashOfApiKey(key));
}

TEST(ApiKeys, ReadsEveryLimit) {
  const auto entries = ParseApiKeys(absl::StrCat("keys:\n"
                                                 "  - name: alice\n"
                                                 "    hash: ",
                                                 HashLine("a"),
                                                 "\n"
                                                 "  - name: \"batch.2-x_y\"\n"
                                                 "    hash: ",
                                                 HashLine("b"),
                                                 "\n"
                                                 "    old_hash: ",
                                                 HashLine("c"),
                                                 "\n"
                                                 "    expires: 2027-01-31\n"
                                                 "    priority: low\n"
                                                 "    weight: 0.5\n"
                                                 "    requests_per_minute: 60\n"
                                                 "    tokens_per_minute: 100000\n"
                                                 "    concurrent_requests: 8\n"
                                                 "    max_tokens: 512\n"),
                                    "keys.yaml");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].name, "alice");
  EXPECT_EQ((*entries)[0].hash, HashOfApiKey("a"));
  EXPECT_EQ((*entries)[0].old_hash, "");
  EXPECT_EQ((*entries)[0].expires, absl::InfiniteFuture());
  EXPECT_EQ((*entries)[0].limits, KeyLimits()) << "without a word there is no limit";
  EXPECT_EQ((*entries)[1].old_hash, HashOfApiKey("c"));
  EXPECT_EQ(absl::FormatTime(absl::RFC3339_sec, (*entries)[1].expires, absl::UTCTimeZone()),
            "2027-01-31T00:00:00+00:00");
  EXPECT_EQ((*entries)[1].limits, (KeyLimits{RequestPriority::kLow, 0.5, 60, 100000, 8, 512}));
}

TEST(ApiKeys, AKeyExpiresAtAMomentToo) {
  const auto entries = ParseApiKeys(
      absl::StrCat("keys: [{name: a, hash: ", HashLine("a"), ", expires: 2027-01-31T18:30:00+02:00}]"), "keys.yaml");
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_EQ(absl::FormatTime(absl::RFC3339_sec, (*entries)[0].expires, absl::UTCTimeZone()),
            "2027-01-31T16:30:00+00:00");
}

struct Bad {
  std::string text, place, words;
};

// No line repeats what stands where a hash should be: it may be a key.
TEST(ApiKeys, EveryBadLineIsNamed) {
  const std::string hash = HashLine("a");
  const std::string good = absl::StrCat("keys:\n- name: a\n  hash: ", hash, "\n");
  for (const Bad& bad : std::vector<Bad>{
           {"", "keys.yaml", "keys is missing"},
           {"keys:\n", "keys.yaml:1", "not a list"},
           {"keys: []\n", "keys.yaml:1", "too few"},
           {"keys:\n- alice\n", "keys.yaml:2", "not a map"},
           {"{", "keys.yaml:1", "not valid YAML"},
           {"key:\n- name: a\n", "keys.yaml:1", "did you mean 'keys'"},
           {"keys:\n- name: a\n", "keys.yaml:2", "keys[0].hash is missing"},
           {absl::StrCat("keys:\n- hash: ", hash, "\n"), "keys.yaml:2", "keys[0].name is missing"},
           {"keys:\n- name: a\n  hash: runahead_secret\n", "keys.yaml:2", "keys[0].hash: is no hash of a key"},
           {good + "  old_hash: runahead_secret\n", "keys.yaml:2", "keys[0].old_hash: is no hash of a key"},
           {absl::StrCat("keys:\n- name: a b\n  hash: ", hash, "\n"), "keys.yaml:2", "keys[0].name: is no name"},
           {absl::StrCat("keys:\n- name: ", std::string(65, 'x'), "\n  hash: ", hash, "\n"), "keys.yaml:2",
            "keys[0].name: is no name"},
           {good + "  expires: tomorrow\n", "keys.yaml:2", "keys[0].expires: is no time"},
           {good + "  expires: 2027-02-30\n", "keys.yaml:2", "keys[0].expires: is no time"},
           {good + "  expires: infinite-future\n", "keys.yaml:2", "keys[0].expires: is no time"},
           {good + "  priority: high\n", "keys.yaml:4", "one of normal, low"},
           {good + "  weight: 0\n", "keys.yaml:4", "from 0.01 to 100"},
           {good + "  requests_per_minute: 0\n", "keys.yaml:4", "1 to"},
           {good + "  tokens_per_minute: many\n", "keys.yaml:4", "not a whole number"},
           {good + "  concurrent_requests: -1\n", "keys.yaml:4", "out of range"},
           {good + "  max_tokens: 1.5\n", "keys.yaml:4", "not a whole number"},
           {good + "  request_per_minute: 5\n", "keys.yaml:4", "did you mean 'requests_per_minute'"},
           {absl::StrCat(good, "- name: a\n  hash: ", HashLine("b"), "\n"), "keys.yaml:4",
            "keys[1].name: the entry at keys.yaml:2 has the same"},
           {absl::StrCat(good, "- name: b\n  hash: ", hash, "\n"), "keys.yaml:4",
            "keys[1].hash: the entry at keys.yaml:2 has the same"},
           {absl::StrCat(good, "- name: b\n  hash: ", HashLine("b"), "\n  old_hash: ", hash, "\n"), "keys.yaml:4",
            "keys[1].old_hash: the entry at keys.yaml:2 has the same"},
       }) {
    const absl::Status status = ParseApiKeys(bad.text, "keys.yaml").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(bad.place + ": "), HasSubstr(bad.words),
                                                     Not(HasSubstr("secret")), Not(HasSubstr(hash.substr(7)))))
        << bad.text;
  }
}

}  // namespace
}  // namespace runahead
