#include "server/router/otlp_endpoint.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/router/router_options.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

std::string Shown(const std::string& url) {
  const absl::StatusOr<OtlpEndpoint> endpoint = ParseOtlpEndpoint(url);
  if (!endpoint.ok()) return std::string(endpoint.status().message());
  return absl::StrCat(endpoint->tls ? "tls " : "", endpoint->host, " ", endpoint->port, " ", endpoint->path);
}

TEST(OtlpEndpoint, IsAUrl) {
  EXPECT_EQ(Shown("http://collector:4318"), "collector 4318 /v1/traces");
  EXPECT_EQ(Shown("http://collector:4318/"), "collector 4318 /v1/traces");
  EXPECT_EQ(Shown("http://collector/otlp/v1/traces"), "collector 80 /otlp/v1/traces");
  EXPECT_EQ(Shown("https://otel.example/v1/traces"), "tls otel.example 443 /v1/traces");
  EXPECT_EQ(Shown("http://[fe80::1]:4318"), "fe80::1 4318 /v1/traces");
  EXPECT_EQ(Shown("http://[fe80::1]"), "fe80::1 80 /v1/traces");
}

TEST(OtlpEndpoint, WhatIsNoneIsRefusedByName) {
  EXPECT_THAT(Shown("collector:4318"), AllOf(HasSubstr("otlp_endpoint: 'collector:4318' begins with neither"),
                                             HasSubstr("write it like http://127.0.0.1:4318")));
  EXPECT_THAT(Shown("grpc://collector:4317"), HasSubstr("begins with neither"));
  EXPECT_THAT(Shown("http://collector:99999"), HasSubstr("port '99999'"));
  EXPECT_THAT(Shown("http://collector:0"), HasSubstr("its port is 0"));
  for (const char* bad : {"http://", "http:///v1/traces", "http://::1", "http://[::1", "http://a b:1",
                          "http://a:1/\r\nX: y", "http://a?key=1", "http://a:4318/v1/traces#x", "http://a:b:1"}) {
    EXPECT_THAT(Shown(bad), HasSubstr("otlp_endpoint: ")) << bad;
  }
}

TEST(OtlpEndpoint, PasswordsAreNotRepeated) {
  EXPECT_THAT(Shown("http://me:secret@collector:4318"), AllOf(HasSubstr("by otlp_headers"), Not(HasSubstr("secret"))));
}

class OtlpHeadersTest : public ::testing::Test {
 protected:
  ~OtlpHeadersTest() override { unlink(path_.c_str()); }
  absl::StatusOr<OtlpHeaders> ReadText(const std::string& text) {
    std::ofstream(path_) << text;
    return ReadOtlpHeaders(path_);
  }
  const std::string path_ = absl::StrCat(::testing::TempDir(), "/otlp_headers_", getpid());
};

TEST_F(OtlpHeadersTest, AreLinesOfAFile) {
  const auto headers = ReadText("Authorization: Bearer a:b=\n\n  \nx-scope-orgid:team\n");
  ASSERT_TRUE(headers.ok()) << headers.status();
  EXPECT_THAT(*headers, ElementsAre(Pair("Authorization", "Bearer a:b="), Pair("x-scope-orgid", "team")));
  EXPECT_TRUE(ReadOtlpHeaders("")->empty());
}

TEST_F(OtlpHeadersTest, WhatIsWrongIsSaidWithoutTheKey) {
  for (const char* bad : {"x-a: 1\nsecret", "x-a: 1\nx b: secret", "x-a: 1\n: secret", "x-a: 1\nx-b: secret\x01",
                          "x-a: 1\nHost: secret", "x-a: 1\ncontent-TYPE: secret", "x-a: 1\nsecret:"}) {
    const absl::Status status = ReadText(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("otlp_headers: "), HasSubstr("line 2"), Not(HasSubstr("secret"))));
  }
  EXPECT_THAT(std::string(ReadOtlpHeaders("/nowhere/headers").status().message()), HasSubstr("otlp_headers: "));
}

TEST(OtlpOptions, TracesCanOnlyBeSentWhereThereAreSome) {
  RouterOptions options;
  EXPECT_TRUE(CheckOtlp(options).ok());
  options.otlp_endpoint = "http://127.0.0.1:4318";
  EXPECT_THAT(std::string(CheckOtlp(options).message()), HasSubstr("otlp_endpoint: with trace off"));
  options.trace = "asked";
  EXPECT_TRUE(CheckOtlp(options).ok());
  options.otlp_endpoint = "127.0.0.1:4318";
  EXPECT_THAT(std::string(CheckOtlp(options).message()), HasSubstr("http://"));
  options.otlp_endpoint = "";
  options.otlp_headers = "headers.txt";
  EXPECT_THAT(std::string(CheckOtlp(options).message()), HasSubstr("otlp_headers: "));
}

}  // namespace
}  // namespace runahead
