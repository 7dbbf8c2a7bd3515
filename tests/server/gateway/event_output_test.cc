#include "server/gateway/event_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The first end keeps little of what the second one does not read.
struct Sockets {
  Sockets() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const int little = 4096;
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
  }
  ~Sockets() {
    close(ends[0]);
    if (ends[1] >= 0) close(ends[1]);
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  int ends[2];
};

class EventOutputTest : public ::testing::Test {
 protected:
  std::function<void()> Says(const std::string& name) {
    return [this, name] { sent_.push_back(name); };
  }

  // What has come, without waiting.
  std::string Come() {
    std::string come;
    char bytes[4096];
    while (true) {
      const ssize_t size = recv(sockets_.ends[1], bytes, sizeof bytes, MSG_DONTWAIT);
      if (size <= 0) return come;
      come.append(bytes, static_cast<size_t>(size));
    }
  }

  // The owner's part: writes `rest` while the other end reads; what came.
  std::string Write(const std::string& rest) {
    std::string come;
    size_t begin = 0;
    while (begin < rest.size()) {
      const ssize_t size = send(sockets_.ends[0], rest.data() + begin, rest.size() - begin, MSG_DONTWAIT);
      if (size > 0) begin += static_cast<size_t>(size);
      come += Come();
    }
    return come;
  }

  const std::string large_ = std::string(1 << 20, 'x');  // more than the sockets keep
  Sockets sockets_;
  int stuck_ = 0;
  std::vector<std::string> sent_;
  EventOutput output_{sockets_.ends[0], [this] { ++stuck_; }};
};

TEST_F(EventOutputTest, ATextIsSentWithinTheCall) {
  output_.Send("one", Says("one"));
  EXPECT_THAT(sent_, ElementsAre("one"));
  EXPECT_EQ(Come(), "one");
  output_.End("end", Says("end"));
  EXPECT_EQ(Come(), "end");
  EXPECT_THAT(sent_, ElementsAre("one", "end"));
  EXPECT_EQ(stuck_, 0);
}

TEST_F(EventOutputTest, WhatIsHeldGoesWithTheNextText) {
  output_.Hold("head ");
  EXPECT_EQ(Come(), "");
  output_.Send("one", Says("one"));
  EXPECT_EQ(Come(), "head one");
}

TEST_F(EventOutputTest, TheOwnerWritesWhatTheSystemDoesNotTake) {
  output_.Send(large_, Says("large"));
  EXPECT_EQ(stuck_, 1);
  output_.Send("two", Says("two"));
  output_.End("end", Says("end"));
  EXPECT_EQ(stuck_, 1);
  EXPECT_THAT(sent_, IsEmpty());
  std::string come = Write(output_.TakeRest());
  EXPECT_FALSE(output_.RestWritten());
  EXPECT_THAT(sent_, ElementsAre("large", "two", "end"));
  come += Come();
  EXPECT_EQ(come.size(), large_.size() + 6);
  EXPECT_EQ(come.substr(large_.size()), "twoend");
}

TEST_F(EventOutputTest, ARestMayFollowOnARest) {
  output_.Send(large_, Says("large"));
  output_.Send(large_, Says("again"));
  std::string come = Write(output_.TakeRest());
  EXPECT_TRUE(output_.RestWritten());
  EXPECT_EQ(stuck_, 1);
  EXPECT_THAT(sent_, ElementsAre("large"));
  come += Write(output_.TakeRest());
  EXPECT_FALSE(output_.RestWritten());
  EXPECT_THAT(sent_, ElementsAre("large", "again"));
  EXPECT_EQ(come.size(), 2 * large_.size());
  output_.Send("direct again", Says("direct"));
  EXPECT_EQ(Come(), "direct again");
}

TEST_F(EventOutputTest, NothingFollowsOnTheEnd) {
  output_.End("end", Says("end"));
  output_.Send("late", Says("late"));
  output_.Hold("held");
  output_.End("again", Says("again"));
  EXPECT_EQ(Come(), "end");
  EXPECT_THAT(sent_, ElementsAre("end", "late", "again"));
}

TEST_F(EventOutputTest, AClosedOneWritesNothingAndSaysSo) {
  output_.Send(large_, Says("large"));
  output_.Send("waits", Says("waits"));
  Come();
  output_.Close();
  EXPECT_THAT(sent_, ElementsAre("large", "waits"));
  output_.Send("late", Says("late"));
  EXPECT_THAT(sent_, ElementsAre("large", "waits", "late"));
  EXPECT_FALSE(output_.RestWritten());
  EXPECT_EQ(Come(), "");
}

TEST_F(EventOutputTest, AnErrorOfTheSocketIsTheOwnersToFind) {
  close(sockets_.ends[1]);
  sockets_.ends[1] = -1;
  output_.Send("one", Says("one"));
  EXPECT_EQ(stuck_, 1);
  EXPECT_EQ(output_.TakeRest(), "one");
  EXPECT_THAT(sent_, IsEmpty());
}

TEST_F(EventOutputTest, TextsOfManyThreadsAreWhole) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, letter = static_cast<char>('a' + i)] {
      for (int n = 0; n < 50; ++n) output_.Send(std::string(5, letter), nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string come = Come();
  if (stuck_ > 0) {
    come += Write(output_.TakeRest());
    EXPECT_FALSE(output_.RestWritten());
    come += Come();
  }
  ASSERT_EQ(come.size(), 4u * 50 * 5);
  for (size_t i = 0; i < come.size(); i += 5) EXPECT_EQ(come.substr(i, 5), std::string(5, come[i]));
}

}  // namespace
}  // namespace runahead
