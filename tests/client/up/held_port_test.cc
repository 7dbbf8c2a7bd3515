#include "client/up/held_port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace runahead {
namespace {

// A socket that is bound to the port of 127.0.0.1, and listens; -1 where that is not to be had.
int ListenAt(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(fd, 1) == 0) return fd;
  close(fd);
  return -1;
}

uint16_t PortOf(int fd) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

TEST(HeldPortTest, WhoAsksForItByNameGetsItAgainAndAgain) {
  const int first = ListenAt(0);
  const uint16_t port = PortOf(first);
  close(first);
  const HeldPort held(absl::StrCat("127.0.0.1:", port));
  for (int life = 0; life < 2; ++life) {
    const int again = ListenAt(port);
    EXPECT_GE(again, 0);
    EXPECT_EQ(ListenAt(port), -1) << "two cannot listen there";
    close(again);
  }
}

TEST(HeldPortTest, NobodyElseIsGivenIt) {
  const HeldPort held("127.0.0.1:0");
  const std::vector<std::string> parts = absl::StrSplit(held.address(), ':');
  ASSERT_EQ(parts[0], "127.0.0.1");
  int number = 0;
  ASSERT_TRUE(absl::SimpleAtoi(parts[1], &number));
  ASSERT_NE(number, 0);
  const auto port = static_cast<uint16_t>(number);
  // Without SO_REUSEADDR it is taken, as it is for who asks for any.
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_NE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(fd);
}

TEST(HeldPortTest, WhatIsNoAddressHoldsNothing) {
  const HeldPort nothing(""), name("localhost:1");
  EXPECT_EQ(name.address(), "localhost:1");
}

TEST(HeldPortTest, WhatIsTakenIsNotHeld) {
  const int first = ListenAt(0);
  const std::string address = absl::StrCat("127.0.0.1:", PortOf(first));
  const HeldPort taken(address);
  EXPECT_EQ(taken.address(), address);
  close(first);
}

}  // namespace
}  // namespace runahead
