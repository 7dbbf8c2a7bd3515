#include "server/base/indexed_map.h"

#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using Indexed = nlohmann::basic_json<IndexedMap>;
using Reference = nlohmann::ordered_json;

TEST(IndexedMap, MakesJsonThatKeepsItsOrder) {
  for (const int members : {0, 1, 16, 17, 18, 300}) {
    std::string text = "{";
    for (int i = 0; i < members; ++i) absl::StrAppend(&text, i == 0 ? "" : ",", "\"", (i * 7) % 307, "\":", i);
    text += "}";
    const Indexed json = Indexed::parse(text);
    EXPECT_EQ(json.dump(), text);
    EXPECT_EQ(json.size(), members);
    EXPECT_FALSE(json.contains("no"));
    for (int i = 0; i < members; ++i) EXPECT_EQ(json[absl::StrCat((i * 7) % 307)], i);
    const Indexed copy = json;
    EXPECT_EQ(copy, json);
  }
}

TEST(IndexedMap, OfANameThatIsGivenTwiceTheLastValueStandsInTheFirstPlace) {
  EXPECT_EQ(Indexed::parse(R"({"a":1,"b":2,"a":3})").dump(), R"({"a":3,"b":2})");
}

// The same steps with nlohmann's own.
TEST(IndexedMap, ChangesAsTheMapOfTheLibraryDoes) {
  std::mt19937 random(1);
  Indexed ours = Indexed::object();
  Reference theirs = Reference::object();
  for (int step = 0; step < 5000; ++step) {
    const std::string name = absl::StrCat(random() % 60);
    switch (random() % 4) {
      case 0:
        EXPECT_EQ(ours.erase(name), theirs.erase(name));
        break;
      case 1:
        EXPECT_EQ(ours.emplace(name, step).second, theirs.emplace(name, step).second);
        break;
      case 2:
        if (!theirs.empty()) {
          ours.erase(ours.begin());
          theirs.erase(theirs.begin());
        }
        break;
      default:
        ours[name] = step;
        theirs[name] = step;
    }
    ASSERT_EQ(ours.contains(name), theirs.contains(name)) << step;
    ASSERT_EQ(ours.dump(), theirs.dump()) << step;
    if (step % 500 == 499) {
      Indexed moved = std::move(ours);
      ours = Indexed(moved);
    }
  }
  ours.clear();
  ours["a"] = 1;
  EXPECT_EQ(ours.dump(), R"({"a":1})");
}

// Where each name is compared with all before it, this does not end in the test's time.
TEST(IndexedMap, ManyMembersAreReadInNoTime) {
  constexpr int kMembers = 400'000;
  std::string text = "{";
  for (int i = 0; i < kMembers; ++i) absl::StrAppend(&text, i == 0 ? "" : ",", "\"", i, "\":0");
  EXPECT_EQ(Indexed::parse(text + "}").size(), kMembers);
}

}  // namespace
}  // namespace runahead
