#include "worker/kv/static_window.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPadding = -1;

// A buffer whose rows hold their positions, filled and moved as the window says.
class WindowBuffer {
 public:
  WindowBuffer(const StaticWindowSize& size, int64_t prompt)
      : size_(size), window_(size, prompt), rows_(static_cast<size_t>(size.reserve), kPadding) {
    for (int64_t at = window_.first_position(); at < prompt; ++at) rows_[window_.RowOf(at)] = at;
  }

  // Returns how many rows were copied.
  int64_t Append() {
    const int64_t position = window_.length();
    const StaticWindow::Appended appended = window_.Append();
    Copy(appended.move);
    rows_.at(appended.row) = position;
    return appended.move.rows;
  }
  // The S - 1 rows of the window.
  std::deque<int64_t> Window() const {
    const auto begin = rows_.begin() + window_.first_row();
    return {begin, begin + size_.past()};
  }
  // What the newest position attends over.
  std::vector<int64_t> Attended() const {
    std::vector<int64_t> attended;
    for (int64_t at = window_.first_attended(); at < window_.length(); ++at) {
      attended.push_back(rows_.at(window_.RowOf(at)));
    }
    return attended;
  }
  const StaticWindow& window() const { return window_; }

 private:
  // In pieces, as a device that cannot copy between ranges that overlap has to.
  void Copy(const StaticWindow::Move& move) {
    for (int64_t row = 0; row < move.rows; ++row) rows_.at(move.to + row) = rows_.at(move.from + row);
  }

  const StaticWindowSize size_;
  StaticWindow window_;
  std::vector<int64_t> rows_;
};

struct WindowCase {
  int64_t context, reserve, prompt;
};

std::vector<WindowCase> WindowCases() {
  std::vector<WindowCase> cases;
  for (const int64_t context : {2, 5, 8, 17}) {
    const int64_t past = context - 1;
    for (const int64_t reserve : {2 * past, past + past / 2, past + 1}) {
      if (reserve < context) continue;
      for (const int64_t prompt : {int64_t{0}, int64_t{1}, past - 1, past, past + 1, 3 * past + 2}) {
        cases.push_back({context, reserve, prompt});
      }
    }
  }
  return cases;
}

class StaticWindowTest : public ::testing::TestWithParam<WindowCase> {};

TEST_P(StaticWindowTest, HoldsWhatAQueueOfTheLastRowsHolds) {
  const auto [context, reserve, prompt] = GetParam();
  const StaticWindowSize size = *MakeStaticWindowSize(context, reserve);
  WindowBuffer buffer(size, prompt);
  std::deque<int64_t> last(static_cast<size_t>(size.past()), kPadding);
  const auto push = [&last](int64_t position) {
    last.pop_front();
    last.push_back(position);
  };
  for (int64_t at = 0; at < prompt; ++at) push(at);
  ASSERT_EQ(buffer.Window(), last);
  const int64_t steps = 5 * size.past() + 3;
  int64_t copies = 0;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<int64_t> seen(last.begin(), last.end());
    seen.push_back(prompt + step);
    seen.erase(seen.begin(), std::find_if(seen.begin(), seen.end(), [](int64_t at) { return at != kPadding; }));
    const int64_t copied = buffer.Append();
    push(prompt + step);
    ASSERT_EQ(buffer.Window(), last) << step;
    ASSERT_EQ(buffer.Attended(), seen) << step;
    ASSERT_EQ(buffer.window().padding(), std::count(last.begin(), last.end(), kPadding)) << step;
    ASSERT_EQ(buffer.window().length(), prompt + step + 1);
    // One copy in as many tokens as the reserve has rows beyond the window: of what the window has, less its padding.
    const bool full = step > 0 && step % (reserve - size.past()) == 0;
    ASSERT_EQ(copied, full ? std::min(size.past(), prompt + step) : 0) << step;
    copies += full ? 1 : 0;
  }
  EXPECT_GE(copies, 3);
}

std::string WindowCaseName(const ::testing::TestParamInfo<WindowCase>& info) {
  return absl::StrCat("S", info.param.context, "_rows", info.param.reserve, "_prompt", info.param.prompt, "_",
                      info.index);
}
INSTANTIATE_TEST_SUITE_P(Sizes, StaticWindowTest, ::testing::ValuesIn(WindowCases()), WindowCaseName);

TEST(StaticWindow, CopiesOnceInAWindowAtTheFullReserve) {
  const StaticWindowSize size = *MakeStaticWindowSize(2048);
  EXPECT_EQ(size.reserve, 2 * 2047);
  EXPECT_EQ(size.appends_per_copy(), 2047);
  WindowBuffer buffer(size, 2047);
  int64_t copied = 0;
  for (int64_t step = 0; step < 2047; ++step) copied += buffer.Append();
  EXPECT_EQ(copied, 0);
  EXPECT_EQ(buffer.Append(), 2047);
  for (int64_t step = 1; step < 2047; ++step) copied += buffer.Append();
  EXPECT_EQ(copied, 0);
  EXPECT_EQ(buffer.Append(), 2047);
}

TEST(StaticWindow, APromptIsPaddedOnTheLeft) {
  const StaticWindow window(*MakeStaticWindowSize(8), 3);
  EXPECT_EQ(window.first_row(), 0);
  EXPECT_EQ(window.padding(), 4);
  EXPECT_EQ(window.first_position(), 0);
  EXPECT_EQ(window.RowOf(0), 4);
  EXPECT_EQ(window.RowOf(2), 6);
}

// Llama-7B: 32 layers, 32 heads of 128, 16 bits, S = 2048.
TEST(StaticWindowBytes, AreThoseOfTheNote) {
  const auto bytes = [](int64_t reserve, int bits) {
    return StaticWindowBytes(*MakeStaticWindowSize(2048, reserve), 32, 32, 128, bits);
  };
  EXPECT_EQ(bytes(0, 16), 2'146'435'072);
  EXPECT_EQ(bytes(4094, 16), 2'146'435'072);
  EXPECT_EQ(bytes(2047 + 2047 / 2, 16), 1'609'564'160);  // of 3070 rows; the note prints half a row more
  EXPECT_EQ(bytes(2048, 16), 1'073'741'824);             // of a single position beside the window: S rows, 1 GiB
  EXPECT_EQ(bytes(0, 8), 1'073'217'536);
  EXPECT_EQ(bytes(0, 32), 4'292'870'144);
}

TEST(StaticWindowSize, RefusesWhatCannotBeAndSaysWhatWorks) {
  for (const int64_t context : {-3, 0, 1}) {
    EXPECT_EQ(MakeStaticWindowSize(context).status().code(), absl::StatusCode::kInvalidArgument) << context;
  }
  for (const int64_t reserve : {-1, 1, 7, 15, 100}) {
    const absl::Status status = MakeStaticWindowSize(8, reserve).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << reserve;
    EXPECT_THAT(status.message(), HasSubstr("8 to 14 work")) << reserve;
  }
  for (int64_t reserve = 8; reserve <= 14; ++reserve) EXPECT_TRUE(MakeStaticWindowSize(8, reserve).ok()) << reserve;
}

}  // namespace
}  // namespace runahead
