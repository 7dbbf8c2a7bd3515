// KnownFixture with API keys, of alice and of bob.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/api_key.h"
#include "server/base/text_file.h"
#include "tests/server/router/known_fixture.h"
#include "tests/testing/fake_clock.h"

namespace runahead::testing {

inline constexpr char kAlicesKey[] = "runahead_alices-secret";
inline constexpr char kBobsKey[] = "runahead_bobs-secret";

class KnownByKeyFixture : public KnownFixture {
 protected:
  void SetUp() override {
    KnownFixture::SetUp();
    const auto entry = [](const char* name, const char* key) {
      return absl::StrCat("  - {name: ", name, ", hash: ", ApiKeyHashText(HashOfApiKey(key)), "}\n");
    };
    ASSERT_TRUE(WriteTextFile(path_, absl::StrCat("keys:\n", entry("alice", kAlicesKey), entry("bob", kBobsKey))).ok());
    auto ring = KeyRing::Open(path_, key_metrics_, clock_);
    ASSERT_TRUE(ring.ok()) << ring.status();
    ring_ = *std::move(ring);
    door_.emplace(*ring_, key_metrics_, clock_);
  }
  void TearDown() override {
    KnownFixture::TearDown();
    std::filesystem::remove(path_);
  }
  static std::string Bearer(const std::string& key) { return absl::StrCat("Bearer ", key); }
  Got As(const std::string& key, const v1::GenerateRequest& request) {
    return Call(*stub_, request, kInVain, {}, "", {{"authorization", Bearer(key)}}).Finish();
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/known_by_key_", getpid(), ".yaml");
  FakeClock clock_{absl::FromUnixSeconds(1'800'000'000)};
  KeyMetrics key_metrics_{metric_registry_};
  std::unique_ptr<KeyRing> ring_;
  std::optional<KeyDoor> door_;
};

}  // namespace runahead::testing
