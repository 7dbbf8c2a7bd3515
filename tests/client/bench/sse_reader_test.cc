#include "client/bench/sse_reader.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The events of `text` when it comes in pieces of `size`.
std::vector<std::string> Read(const std::string& text, size_t size) {
  SseReader reader;
  std::vector<std::string> events;
  for (size_t at = 0; at < text.size(); at += size) {
    const absl::Status fed = reader.Feed(absl::string_view(text).substr(at, size), [&](absl::string_view data) {
      events.emplace_back(data);
      return absl::OkStatus();
    });
    EXPECT_TRUE(fed.ok()) << fed;
  }
  return events;
}

TEST(SseReader, HowAStreamIsCutChangesNothing) {
  const std::string text =
      ": waiting\n\ndata: one\n\n"
      "event: x\r\nid: 7\r\ndata: two\r\ndata: lines\r\n\r\n"
      "data:three\r\r"
      "retry: 5\ndata: a\ndata\ndata:  b\n\n";
  for (size_t size = 1; size <= text.size(); ++size) {
    EXPECT_THAT(Read(text, size), ElementsAre("one", "two\nlines", "three", "a\n\n b")) << size;
  }
}

TEST(SseReader, OtherFieldsAndUnendedEventsAreLeftOut) {
  EXPECT_THAT(Read("database: x\n\ndata: cut", 100), IsEmpty());
  EXPECT_THAT(Read("data: cut\n", 100), IsEmpty()) << "the empty line is missing";
  EXPECT_THAT(Read("data:\n\n", 100), ElementsAre(""));
  EXPECT_THAT(Read("\n\n\r\n", 100), IsEmpty());
}

TEST(SseReader, TheHearersErrorEndsTheReading) {
  SseReader reader;
  int heard = 0;
  const absl::Status status = reader.Feed("data: 1\n\ndata: 2\n\n", [&](absl::string_view) {
    ++heard;
    return absl::InternalError("no");
  });
  EXPECT_EQ(status, absl::InternalError("no"));
  EXPECT_EQ(heard, 1);
}

TEST(SseReader, AnEventWithoutEndIsRefused) {
  SseReader reader;
  const std::string piece = "data: " + std::string(1 << 20, 'x') + "\n";
  absl::Status status;
  int pieces = 0;
  for (; status.ok() && pieces < 100; ++pieces) {
    status = reader.Feed(piece, [](absl::string_view) { return absl::OkStatus(); });
  }
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_LT(pieces, 6);
}

}  // namespace
}  // namespace runahead
