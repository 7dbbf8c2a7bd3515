#include "server/router/router_options.h"

#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

TEST(RouterOptions, ReadsTheWorkerListFromYaml) {
  RouterOptions options;
  ConfigSchema schema;
  DeclareRouterOptions(schema, options);
  const absl::Status status = ReadConfigText(
      "model: m.gguf\nqueue_size: 0\nworkers:\n  - {role: prefill, address: 127.0.0.1:1}\n"
      "  - {role: both, address: 127.0.0.1:2}\n",
      "router.yaml", schema);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(schema.Finish("router.yaml").ok());
  ASSERT_EQ(options.workers.size(), 2u);
  EXPECT_TRUE(options.workers[0].prefills());
  EXPECT_FALSE(options.workers[0].decodes());
  EXPECT_TRUE(options.workers[1].decodes());
  EXPECT_EQ(options.queue_size, 0);
}

TEST(RouterOptions, ReserveIsExpectedUnlessItIsFull) {
  RouterOptions options;
  ConfigSchema schema;
  DeclareRouterOptions(schema, options);
  EXPECT_EQ(options.reserve, "expected");
  EXPECT_TRUE(ReadConfigText("reserve: full", "router.yaml", schema).ok());
  EXPECT_EQ(options.reserve, "full");
  EXPECT_EQ(options.known_beginnings, "on");
  EXPECT_TRUE(ReadConfigText("known_beginnings: \"off\"", "router.yaml", schema).ok());
  EXPECT_EQ(options.known_beginnings, "off");
  EXPECT_THAT(std::string(ReadConfigText("reserve: half", "router.yaml", schema).message()),
              HasSubstr("one of expected, full"));
}

TEST(RouterOptions, TenantsAreGivenInOnePlace) {
  RouterOptions options;
  ConfigSchema schema;
  DeclareRouterOptions(schema, options);
  EXPECT_TRUE(ReadConfigText("tenants: [{name: batch, weight: 2}]", "router.yaml", schema).ok());
  EXPECT_TRUE(CheckTenants(options).ok());
  EXPECT_TRUE(ReadConfigText("api_keys: keys.yaml", "router.yaml", schema).ok());
  EXPECT_THAT(std::string(CheckTenants(options).message()), HasSubstr("give its weight in keys.yaml"));
  options.tenants.clear();
  EXPECT_TRUE(CheckTenants(options).ok());
}

TEST(RouterOptions, RefusalsAreAsTheDocumentationShowsThem) {
  std::ifstream file("docs/configuration.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  RouterOptions options;
  ConfigSchema schema;
  DeclareRouterOptions(schema, options);
  EXPECT_THAT(text, HasSubstr(std::string(ReadConfigText("\n\nqueue_size: -1", "router.yaml", schema).message())));
}

}  // namespace
}  // namespace runahead
