// What goes on to the router with a call: seen by a router that takes calls with an API key only.
#include "server/gateway/call_context.h"

#include <unistd.h>

#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/base/api_key.h"
#include "server/base/text_file.h"
#include "server/router/key_door.h"
#include "tests/server/gateway/gateway_fixture.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using testing::kHello;

constexpr char kKey[] = "runahead_alices-secret";

class CallContextTest : public testing::GatewayFixture {
 protected:
  void StartWithKeys() {
    ASSERT_TRUE(
        WriteTextFile(path_, absl::StrCat("keys: [{name: alice, hash: ", ApiKeyHashText(HashOfApiKey(kKey)), "}]\n"))
            .ok());
    auto ring = KeyRing::Open(path_, key_metrics_, clock_);
    ASSERT_TRUE(ring.ok()) << ring.status();
    ring_ = *std::move(ring);
    door_.emplace(*ring_, key_metrics_, clock_);
    testing::RouterSetup setup{.prefill = 1};
    setup.keys = &*door_;
    StartGateway(setup);
  }
  void TearDown() override {
    GatewayFixture::TearDown();
    std::filesystem::remove(path_);
  }

  httplib::Result Chat(const httplib::Headers& headers) { return Post("/v1/chat/completions", kHello, headers); }
  void ExpectUnauthorized(const httplib::Headers& headers) {
    const auto reply = Chat(headers);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 401) << reply->body;
    EXPECT_THAT(reply->body, HasSubstr(R"("code":"invalid_api_key")"));
    EXPECT_EQ(reply->get_header_value("WWW-Authenticate"), "Bearer");
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/call_context_test_", getpid(), ".yaml");
  testing::FakeClock clock_{absl::FromUnixSeconds(1'800'000'000)};
  KeyMetrics key_metrics_{metric_registry_};
  std::unique_ptr<KeyRing> ring_;
  std::optional<KeyDoor> door_;
};

TEST_F(CallContextTest, TheRouterHasTheClientsKey) {
  StartWithKeys();
  const httplib::Headers right = {{"Authorization", absl::StrCat("Bearer ", kKey)}};
  const httplib::Headers wrong = {{"Authorization", "Bearer runahead_guessed-secret"}};
  ExpectUnauthorized({});
  const auto reply = Chat(right);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200) << reply->body;
  // The gateway knows the model now, and asks for an answer at once.
  ExpectUnauthorized({});
  ExpectUnauthorized(wrong);
}

TEST_F(CallContextTest, TheRouterHasTheClientsTenant) {
  StartWithKeys();
  const auto as = [this](const char* tenant) {
    return Chat({{"Authorization", absl::StrCat("Bearer ", kKey)}, {"runahead-tenant", tenant}});
  };
  const auto own = as("alice");
  ASSERT_TRUE(own);
  EXPECT_EQ(own->status, 200) << own->body;
  const auto other = as("bob");
  ASSERT_TRUE(other);
  EXPECT_EQ(other->status, 403) << other->body;
  EXPECT_THAT(other->body, HasSubstr("not those of \\\"bob\\\""));
}

}  // namespace
}  // namespace runahead
