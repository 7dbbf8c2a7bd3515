// `runahead keys` as a program.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/api_key.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using testing::TestProcess;

TEST(KeysCommand, PrintsAnEntryForTheFileAndBesideItTheKeyOnce) {
  TestProcess made({RUNAHEAD_BINARY, "keys", "new", "alice"});
  ASSERT_EQ(made.Wait(), 0) << made.err();
  ASSERT_THAT(made.err(), MatchesRegex("\n.*\nrunahead_[0-9a-f]{64}\n"));
  const std::string key = made.err().substr(made.err().find("runahead_"), 9 + 64);
  EXPECT_EQ(made.out(), absl::StrCat("  - name: \"alice\"\n    hash: ", ApiKeyHashText(HashOfApiKey(key)), "\n"));
}

TEST(KeysCommand, PrintsOneJsonObject) {
  TestProcess made({RUNAHEAD_BINARY, "keys", "new", "batch.2", "--json"});
  ASSERT_EQ(made.Wait(), 0) << made.err();
  EXPECT_EQ(made.err(), "");
  const nlohmann::json said = nlohmann::json::parse(made.out());
  EXPECT_EQ(said.size(), 3u);
  EXPECT_EQ(said.at("name"), "batch.2");
  EXPECT_EQ(said.at("hash"), ApiKeyHashText(HashOfApiKey(said.at("key").get<std::string>())));
}

TEST(KeysCommand, RefusesANameThatIsNone) {
  for (const std::string& name : {std::string("a b"), std::string("a:b"), std::string(65, 'a'), std::string()}) {
    TestProcess made({RUNAHEAD_BINARY, "keys", "new", name});
    EXPECT_EQ(made.Wait(), 2) << name;
    EXPECT_THAT(made.err(), HasSubstr("NAME: is no name; allowed: 1 to 64 letters"));
    EXPECT_EQ(made.out(), "");
  }
}

}  // namespace
}  // namespace runahead
