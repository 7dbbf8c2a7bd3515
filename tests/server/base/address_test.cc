#include "server/base/address.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(Address, TakesNamesAndBothFamilies) {
  for (const char* text : {"127.0.0.1:9000", "worker-3.pool:1", "[::1]:65535", "[fe80::1%eth0]:0"}) {
    const auto address = ParseHostPort(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(FormatHostPort(*address), text);
  }
  EXPECT_EQ(ParseHostPort("[::1]:9")->host, "::1");
}

TEST(Address, RefusesTheRest) {
  for (const char* text : {"", ":", ":80", "host", "host:", "host:x", "host:-1", "host:65536", "host:999999999999",
                           "::1:80", "[::1]", "[]:1", "[::1:80", "a b:1", "a/b:1", "host:1 ", "http://a:1"}) {
    EXPECT_FALSE(ParseHostPort(text).ok()) << text;
  }
}

TEST(Address, WhatIsNoneIsShownInOneLine) {
  EXPECT_EQ(ParseHostPort("a\x1b\n").status().message(),
            "'a\\x1b\\n' is not an address; write host:port, such as 127.0.0.1:9000 or [::1]:9000");
}

TEST(Address, LoopbackIsWhatOnlyThisHostReaches) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) EXPECT_TRUE(IsLoopback(host)) << host;
  for (const char* host :
       {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "127.example.com", "worker-3", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

}  // namespace
}  // namespace runahead
