#include "worker/link/link_host.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <string>

namespace runahead {
namespace {

bool IsNumeric(const std::string& address) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, address.c_str(), bytes) == 1 || inet_pton(AF_INET6, address.c_str(), bytes) == 1;
}

TEST(LinkHost, KeepsAnAddressAndResolvesAName) {
  EXPECT_EQ(*LinkHost("10.1.2.3"), "10.1.2.3");
  EXPECT_EQ(*LinkHost("::1"), "::1");
  EXPECT_TRUE(*LinkHost("localhost") == "127.0.0.1" || *LinkHost("localhost") == "::1");
}

TEST(LinkHost, TakesANetworkWhereAllAreListenedAt) {
  for (const char* all : {"0.0.0.0", "::"}) {
    const std::string host = *LinkHost(all);
    EXPECT_TRUE(IsNumeric(host)) << host;
    EXPECT_NE(host, all);
  }
}

TEST(LinkHost, RefusesAnUnknownName) {
  const absl::Status status = LinkHost("no such host").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("no such host"), std::string::npos);
}

}  // namespace
}  // namespace runahead
