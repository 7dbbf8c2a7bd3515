#include "server/tokenizer/stop_matcher.h"

#include <algorithm>
#include <random>

#include "gtest/gtest.h"

namespace runahead {
namespace {

// What comes out when `pieces` go in, up to the stop or the end.
std::string Filtered(const std::vector<std::string>& stops, const std::vector<std::string>& pieces,
                     bool* stopped = nullptr) {
  StopMatcher matcher(stops);
  std::string text;
  for (const std::string& piece : pieces) {
    const StopMatcher::Output output = matcher.Feed(piece);
    text += output.text;
    if (stopped != nullptr) *stopped = output.stopped;
    if (output.stopped) break;
  }
  return text + matcher.Finish();
}

TEST(StopMatcher, PassesEverythingOnWithoutStops) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.Feed("hello").text, "hello");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, HoldsBackOnlyAPossibleBeginning) {
  StopMatcher matcher({"\n\nUser:"});
  EXPECT_EQ(matcher.Feed("yes\n").text, "yes");
  EXPECT_EQ(matcher.Feed("\n").text, "");
  EXPECT_EQ(matcher.Feed("Us").text, "");
  EXPECT_EQ(matcher.Feed("ual").text, "\n\nUsual");
  EXPECT_EQ(matcher.Feed("\n").text, "");
  EXPECT_EQ(matcher.Finish(), "\n");
}

TEST(StopMatcher, CutsAtTheMatchAndStaysStopped) {
  StopMatcher matcher({"END"});
  const StopMatcher::Output output = matcher.Feed("text END more");
  EXPECT_EQ(output.text, "text ");
  EXPECT_TRUE(output.stopped);
  EXPECT_EQ(matcher.Feed("later").text, "");
  EXPECT_TRUE(matcher.Feed("").stopped);
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, AStopThatOverlapsItself) {
  bool stopped = false;
  EXPECT_EQ(Filtered({"aab"}, {"a", "a", "a", "a", "b", "c"}, &stopped), "aa");
  EXPECT_TRUE(stopped);
  EXPECT_EQ(Filtered({"abab"}, {"abacab", "ab"}, &stopped), "abac");
  EXPECT_TRUE(stopped);
}

TEST(StopMatcher, AStopIsTextWhereItDoesNotLook) {
  StopMatcher matcher({"END", "aa"});
  matcher.SetLooking(false);
  EXPECT_EQ(matcher.Feed("one END two EN").text, "one END two ");
  EXPECT_EQ(matcher.Feed("D a").text, "END ");
  EXPECT_EQ(matcher.Feed("a").text, "a") << "the second may begin another one";
  matcher.SetLooking(true);
  const StopMatcher::Output output = matcher.Feed("a b");
  EXPECT_TRUE(output.stopped) << "it began before";
  EXPECT_EQ(output.text, "");
}

TEST(StopMatcher, TheStopThatIsCompleteFirstWins) {
  EXPECT_EQ(Filtered({"abcd", "bc"}, {"xabcd"}), "xa");
  EXPECT_EQ(Filtered({"bc", "abc"}, {"xabcd"}), "x");  // both end at c: the longest
  EXPECT_EQ(Filtered({"", "b"}, {"abc"}), "a");        // an empty stop is none
}

TEST(StopMatcher, AnEmptyDeltaChangesNothing) {
  StopMatcher matcher({"xy"});
  EXPECT_EQ(matcher.Feed("ax").text, "a");
  EXPECT_EQ(matcher.Feed("").text, "");
  EXPECT_TRUE(matcher.Feed("y").stopped);
}

TEST(StopMatcher, NeverSplitsACharacter) {
  StopMatcher matcher({"\xe4\xbd\xa0\xe5\xa5\xbd"});
  EXPECT_EQ(matcher.Feed("a\xe4\xbd\xa0").text, "a");
  EXPECT_EQ(matcher.Feed("\xe5\x93\x81").text,
            "\xe4\xbd\xa0\xe5\x93\x81");  // shares a byte with the stop, no character
}

// What comes out of pieces, of which those in angle brackets are names of hidden tokens.
std::string FilteredWithNames(const std::vector<std::string>& stops, const std::vector<std::string>& with_names,
                              const std::vector<std::string>& pieces, bool* stopped = nullptr) {
  StopMatcher matcher(stops, with_names);
  std::string text;
  for (const std::string& piece : pieces) {
    const StopMatcher::Output output = piece[0] == '<' ? matcher.FeedHidden(piece) : matcher.Feed(piece);
    text += output.text;
    if (stopped != nullptr) *stopped = output.stopped;
    if (output.stopped) return text;
  }
  return text + matcher.Finish();
}

TEST(StopMatcher, AStopWithTheNameOfAHiddenTokenIsFoundInTheTextWithNames) {
  EXPECT_EQ(FilteredWithNames({}, {"<e>"}, {"ab", "<e>", "cd"}), "ab");
  EXPECT_EQ(FilteredWithNames({}, {"b<e>c"}, {"ab", "<e>", "cd"}), "a");
  EXPECT_EQ(FilteredWithNames({}, {"b<e>\n"}, {"ab", "<e>", "\nd"}), "a");
  EXPECT_EQ(FilteredWithNames({}, {"b<e>\n"}, {"ab", "<e>", "cd"}), "abcd");
  EXPECT_EQ(FilteredWithNames({}, {"<e><e>"}, {"a", "<e>", "b", "<e>", "<e>", "c"}), "ab");
  EXPECT_EQ(FilteredWithNames({}, {"<e>"}, {"a", "b<e", ">c"}), "ab");  // spelled by text
}

TEST(StopMatcher, AStopWithoutNamesSeesTheTextAlone) {
  EXPECT_EQ(FilteredWithNames({"<"}, {}, {"ab", "<e>", "c<d"}), "abc");
  EXPECT_EQ(FilteredWithNames({"bc"}, {"<f>"}, {"ab", "<e>", "cd"}), "a");
}

// The definition, at leisure: the first position where a stop ends, and the longest stop that ends there.
std::string Reference(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopMatcher, TheSameHoweverTheTextIsCut) {
  std::mt19937 random(11);
  const auto word = [&random](size_t longest) {
    std::string text;
    for (size_t n = 1 + random() % longest; n > 0; --n) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  int stops_found = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = 1 + random() % 3; n > 0; --n) stops.push_back(word(6));
    std::string text;
    std::vector<std::string> pieces;
    while (text.size() < 20) {
      pieces.push_back(word(4));
      text += pieces.back();
    }
    bool stopped = false;
    const std::string expected = Reference(stops, text);
    EXPECT_EQ(Filtered(stops, pieces, &stopped), expected);
    EXPECT_EQ(stopped, expected != text);
    stops_found += stopped ? 1 : 0;
  }
  EXPECT_GT(stops_found, 1000);
  EXPECT_LT(stops_found, 4999);
}

// Of a text of letters that are shown and names that are not: the first position where a stop ends, and how much before
// it is shown.
TEST(StopMatcher, WithNamesTheSameAsByTheDefinition) {
  std::mt19937 random(12);
  const auto word = [&random](size_t longest) {
    std::string text;
    for (size_t n = 1 + random() % longest; n > 0; --n) text += random() % 3 == 0 ? "<e>" : random() % 2 ? "a" : "b";
    return text;
  };
  int stops_found = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::string stop = word(4);
    std::string all, shown;
    std::vector<std::string> pieces;
    while (pieces.size() < 12) {
      pieces.push_back(random() % 3 == 0 ? "<e>" : random() % 2 ? "a" : "b");
      all += pieces.back();
    }
    const std::string before = all.substr(0, all.find(stop));
    for (const char c : before) shown += c == 'a' || c == 'b' ? std::string(1, c) : std::string();
    bool stopped = false;
    EXPECT_EQ(FilteredWithNames({}, {stop}, pieces, &stopped), shown) << stop << " in " << all;
    EXPECT_EQ(stopped, before != all);
    stops_found += stopped ? 1 : 0;
  }
  EXPECT_GT(stops_found, 1000);
  EXPECT_LT(stops_found, 4999);
}

}  // namespace
}  // namespace runahead
