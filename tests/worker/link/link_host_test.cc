#include "worker/link/link_host.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstdlib>

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
  unsetenv("UCX_NET_DEVICES");
  for (const char* all : {"0.0.0.0", "::"}) {
    const std::string host = *LinkHost(all);
    EXPECT_TRUE(IsNumeric(host)) << host;
    EXPECT_NE(host, all);
  }
  setenv("UCX_NET_DEVICES", "lo", 1);
  EXPECT_EQ(*LinkHost("0.0.0.0"), "127.0.0.1");
  setenv("UCX_NET_DEVICES", "mlx5_0:1", 1);  // no network's name: says nothing of addresses
  EXPECT_TRUE(IsNumeric(*LinkHost("0.0.0.0")));
  unsetenv("UCX_NET_DEVICES");
}

TEST(LinkHost, RefusesAnUnknownName) {
  const absl::Status status = LinkHost("no such host").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("no such host"), std::string::npos);
}

}  // namespace
}  // namespace runahead
