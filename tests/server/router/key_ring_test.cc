#include "server/router/key_ring.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/api_key.h"
#include "server/base/text_file.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/metric_values.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Entry(const std::string& name, const std::string& key, const std::string& more = "") {
  return absl::StrCat("  - {name: ", name, ", hash: ", ApiKeyHashText(HashOfApiKey(key)), more, "}\n");
}

class KeyRingTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(path_); }
  void Write(const std::string& entries) { ASSERT_TRUE(WriteTextFile(path_, "keys:\n" + entries).ok()); }
  void Open(const std::string& entries) {
    Write(entries);
    auto ring = KeyRing::Open(path_, metrics_, clock_);
    ASSERT_TRUE(ring.ok()) << ring.status();
    ring_ = *std::move(ring);
  }
  void Look() { ring_->Poll(now_ += kFollowPeriod); }
  // The name of the one that is this key; empty: there is none.
  std::string NameOf(const std::string& key) {
    const KeyRing::Found found = ring_->Find(key);
    return found.account == nullptr ? "" : found.account->name();
  }
  double Reloads(const std::string& result) {
    return testing::Value(registry_, absl::StrCat("runahead_api_key_reloads_total{result=\"", result, "\"}"));
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/key_ring_test_", getpid(), ".yaml");
  testing::FakeClock clock_;
  MetricRegistry registry_{"none"};
  KeyMetrics metrics_{registry_};
  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<KeyRing> ring_;
};

TEST_F(KeyRingTest, FindsAKeyWhereverItStandsAndNothingThatIsAlmostOne) {
  std::string entries;
  std::vector<std::string> keys;
  for (int i = 0; i < 20; ++i) {
    keys.push_back(DrawApiKey());
    entries += Entry(absl::StrCat("key-", i), keys.back());
  }
  Open(entries);
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string& key = keys[i];
    EXPECT_EQ(NameOf(key), absl::StrCat("key-", i));
    std::string first = key, last = key;
    first[0] ^= 1;
    last.back() ^= 1;
    for (const std::string& almost : {first, last, key + "0", key.substr(1), key.substr(0, key.size() - 1)}) {
      EXPECT_EQ(NameOf(almost), "");
    }
    EXPECT_EQ(NameOf(HashOfApiKey(key)), "") << "the hash is no key";
    EXPECT_EQ(NameOf(ApiKeyHashText(HashOfApiKey(key))), "");
  }
  EXPECT_EQ(NameOf(""), "");
}

TEST_F(KeyRingTest, AnOldKeyIsTheSameTenants) {
  Open(Entry("alice", "new", absl::StrCat(", old_hash: ", ApiKeyHashText(HashOfApiKey("old")))));
  EXPECT_EQ(NameOf("old"), "alice");
  EXPECT_EQ(ring_->Find("old").account, ring_->Find("new").account) << "its limits are not doubled";
}

TEST_F(KeyRingTest, FollowsItsFileAndKeysThatStayGoOnWithWhatTheyTook) {
  Open(Entry("alice", "a", ", requests_per_minute: 5") + Entry("bob", "b"));
  const std::shared_ptr<KeyAccount> alice = ring_->Find("a").account, bob = ring_->Find("b").account;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(alice->LetIn().ok());
  KeyGrant running = *bob->Enter();
  Write(Entry("carol", "c") + Entry("alice", "a2", ", requests_per_minute: 6"));
  EXPECT_EQ(NameOf("c"), "") << "nobody has looked";
  Look();
  EXPECT_EQ(NameOf("c"), "carol");
  EXPECT_EQ(NameOf("b"), "") << "takes no new call";
  EXPECT_EQ(NameOf("a"), "") << "it has another key";
  EXPECT_TRUE(running.TakeTokens(5).ok()) << "what runs goes on";
  running.Settle(3, 2);
  EXPECT_EQ(ring_->Find("a2").account, alice);
  EXPECT_TRUE(alice->LetIn().ok()) << "by the new limit";
  EXPECT_FALSE(alice->LetIn().ok()) << "a change of the file is no new minute";
  EXPECT_EQ(Reloads("ok"), 1);
  EXPECT_EQ(Reloads("error"), 0);
}

TEST_F(KeyRingTest, WhatIsNotWholeAndValidChangesNothing) {
  Open(Entry("alice", "a") + Entry("bob", "b"));
  const std::string good = "keys:\n" + Entry("carol", "c");
  ::testing::internal::CaptureStderr();
  for (const std::string& bad : {good + "  - {name: dave}\n", std::string("keys: []\n"), std::string(),
                                 std::string("{"), good.substr(0, good.size() - 5)}) {
    ASSERT_TRUE(WriteTextFile(path_, bad).ok());
    Look();
    EXPECT_EQ(NameOf("a"), "alice") << bad;
    EXPECT_EQ(NameOf("c"), "") << bad;
  }
  std::filesystem::remove(path_);
  Look();
  EXPECT_EQ(NameOf("b"), "bob") << "the file is gone";
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr(" W "), HasSubstr(":3: keys[1].hash is missing"), HasSubstr("from before stay in use")));
  EXPECT_EQ(Reloads("error"), 6);
  Look();
  EXPECT_EQ(Reloads("error"), 6) << "once a change";
}

TEST_F(KeyRingTest, AFileThatEverybodyMayWriteIsRefused) {
  Write(Entry("alice", "a"));
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  const absl::Status status = KeyRing::Open(path_, metrics_, clock_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), AllOf(StartsWith("api_keys: "), HasSubstr(path_), HasSubstr("chmod o-w")));
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
  EXPECT_TRUE(KeyRing::Open(path_, metrics_, clock_).ok()) << "to be read it may be by all: it holds no key";
}

TEST_F(KeyRingTest, AFileThatWasRefusedForItsModeIsTakenOnceThatIsMended) {
  Open(Entry("alice", "a"));
  Write(Entry("bob", "b"));
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  for (int i = 0; i < 3; ++i) Look();
  EXPECT_EQ(NameOf("b"), "");
  EXPECT_EQ(Reloads("error"), 1) << "it is said once";
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
  Look();
  EXPECT_EQ(NameOf("b"), "bob") << "the text is the same";
  EXPECT_EQ(NameOf("a"), "");
  Look();
  EXPECT_EQ(Reloads("ok"), 1);
  EXPECT_EQ(Reloads("error"), 1);
}

TEST_F(KeyRingTest, WhatCannotBeReadIsNamedAtStart) {
  EXPECT_THAT(KeyRing::Open("/nowhere/keys.yaml", metrics_, clock_).status().ToString(),
              HasSubstr("NOT_FOUND: api_keys: cannot read /nowhere/keys.yaml"));
  Write("  - {name: alice}\n");
  EXPECT_THAT(KeyRing::Open(path_, metrics_, clock_).status().ToString(),
              HasSubstr(absl::StrCat("api_keys: ", path_, ":2: keys[0].hash is missing")));
}

}  // namespace
}  // namespace runahead
