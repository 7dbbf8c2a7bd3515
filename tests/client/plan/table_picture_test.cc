#include "client/plan/table_picture.h"

#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::Not;
using ::testing::StartsWith;

PartitionFile Untimed() {
  PartitionFile file;
  file.model = "tiny <&> \"quoted\"";
  file.entries = {{2, 1000, {.6, .4}, {}, {}, {}}};
  return file;
}

PartitionFile Timed() {
  PartitionFile file = Untimed();
  file.entries = {{1, 1000, {1}, .3, .4, {}}, {2, 1000, {.6, .4}, {}, .25, .05}, {2, 4000, {.6, .4}, 2.5, {}, {}}};
  return file;
}

size_t Count(const std::string& text, const std::string& part) {
  return std::vector<std::string>(absl::StrSplit(text, part)).size() - 1;
}

// The numbers behind `key` in the lines that have `mark`.
std::vector<double> Numbers(const std::string& svg, const std::string& mark, const std::string& key) {
  std::vector<double> numbers;
  for (const absl::string_view line : absl::StrSplit(svg, '\n')) {
    const size_t at = line.find(key + "=\"");
    if (line.find(mark) == line.npos || at == line.npos) continue;
    const size_t begin = at + key.size() + 2;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(begin, line.find('"', begin) - begin), &numbers.emplace_back())) << line;
  }
  return numbers;
}

TEST(TablePicture, IsOneDocumentOfWholeElements) {
  for (const std::string& svg : {TableSvg(Untimed()), TableSvg(Timed())}) {
    EXPECT_THAT(svg, AllOf(StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""), EndsWith("</svg>\n")));
    EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
    EXPECT_EQ(Count(svg, "<"), Count(svg, ">"));
    EXPECT_EQ(Count(svg, "<text"), Count(svg, "</text>"));
    EXPECT_THAT(svg, HasSubstr("tiny &lt;&amp;&gt; &quot;quoted&quot;"));
  }
}

TEST(TablePicture, CutsBarsAsThePromptIsCut) {
  const std::string svg = TableSvg(Untimed());
  EXPECT_EQ(Count(svg, "stroke=\"white\""), 2u);
  const double head = Numbers(svg, "#0072b2", "width")[0], tail = Numbers(svg, "#b8690b", "width")[0];
  EXPECT_NEAR(head / (head + tail), .6, 1e-3);
  EXPECT_NEAR(Numbers(svg, "#b8690b", "x")[0], Numbers(svg, "#0072b2", "x")[0] + head, .15);
  EXPECT_THAT(svg, AllOf(HasSubstr("600 (60%)"), HasSubstr("400 (40%)")));
  EXPECT_THAT(svg, Not(HasSubstr("Time to first token")));
}

TEST(TablePicture, ShowsTimesByWidth) {
  const std::string svg = TableSvg(Timed());
  EXPECT_THAT(svg, AllOf(HasSubstr("Time to first token by width"), HasSubstr("1000 tokens"), HasSubstr("4000 tokens"),
                         HasSubstr("0.4 s"), HasSubstr("0.25 s"), HasSubstr("2.5 s")));
  const std::vector<double> y = Numbers(svg, "<circle", "cy");  // of 2.5 s, then 0.3, 0.4 and 0.25 s
  ASSERT_EQ(y.size(), 4u);
  EXPECT_THAT(y, ElementsAre(Lt(y[2]), Lt(y[3]), Lt(y[1]), Lt(Numbers(svg, "<svg", "height")[0])));
  EXPECT_NEAR((y[3] - y[2]) / (y[2] - y[0]), std::log(.4 / .25) / std::log(2.5 / .4), .01);
}

TEST(TablePicture, LeavesOutLabelsThatDoNotFit) {
  PartitionFile file;
  file.entries = {{3, 100000, {.99, .005, .005}, {}, {}, {}}};
  const std::string svg = TableSvg(file);
  EXPECT_THAT(svg, HasSubstr("99000 (99%)"));
  EXPECT_THAT(svg, Not(HasSubstr(">500<")));
}

TEST(TablePicture, DrawsOneTimeAlone) {
  for (const double seconds : {1e-9, .1, 1.0, 2.0, 5.0, 10.0, 1e6}) {
    PartitionFile file;
    file.entries = {{1, 10, {1}, {}, seconds, seconds}};  // a spread down to 0 has no logarithm
    EXPECT_THAT(TableSvg(file), AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf")), HasSubstr("<circle")));
  }
}

}  // namespace
}  // namespace runahead
