#include "scheduler/placement/prefix_tree.h"

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int64_t kChunk = 4;
using TreeIds = std::vector<int32_t>;
using ModelTree = PrefixTree<int>;

constexpr auto kAll = [](int) { return true; };

TreeIds First(const TreeIds& ids, size_t count) {
  return {ids.begin(), ids.begin() + static_cast<int64_t>(std::min(count, ids.size()))};
}

// Values are numbers in the order in which chunks were fresh, from `next` on.
std::vector<int> Add(ModelTree& tree, const std::string& salt, const TreeIds& ids, int& next) {
  return tree.Add(salt, ids, [&next](int64_t, int& value, bool fresh) {
    if (fresh) value = next++;
  });
}

std::vector<int> Values(const ModelTree::Known& known) {
  std::vector<int> values;
  for (const ModelTree::Node* node : known.nodes) values.push_back(node->value);
  return values;
}

TEST(PrefixTree, KnowsNothingAtFirst) {
  ModelTree tree(kChunk);
  EXPECT_EQ(tree.Find("", TreeIds{1, 2}).tokens, 0);
  EXPECT_EQ(tree.Find("", {}).tokens, 0);
  EXPECT_FALSE(tree.RemoveOldest().has_value());
}

TEST(PrefixTree, FindsWhatBeginsAlikeToTheToken) {
  ModelTree tree(kChunk);
  int next = 1;
  EXPECT_THAT(Add(tree, "", {1, 2, 3, 4, 5, 6}, next), IsEmpty());
  EXPECT_EQ(tree.nodes(), 2);
  EXPECT_EQ(tree.tokens(), 6);
  EXPECT_EQ(tree.Find("", TreeIds{1, 2, 9}).tokens, 2);
  EXPECT_EQ(tree.Find("", TreeIds{1, 2, 3, 4, 5, 9}).tokens, 5);
  EXPECT_EQ(tree.Find("", TreeIds{1, 2, 3, 4, 5, 6, 7}).tokens, 6);
  EXPECT_THAT(Values(tree.Find("", TreeIds{1, 2, 3, 4, 5})), ElementsAre(1, 2));
  EXPECT_THAT(Values(tree.Find("", TreeIds{1, 2, 3, 4})), ElementsAre(1));
  EXPECT_THAT(Values(tree.Find("", TreeIds{1, 2, 3, 4, 9})), ElementsAre(1)) << "no node without a token";
}

TEST(PrefixTree, SaltsKnowNothingOfEachOther) {
  ModelTree tree(kChunk);
  int next = 1;
  Add(tree, "a", {1, 2, 3}, next);
  EXPECT_EQ(tree.Find("", TreeIds{1, 2, 3}).tokens, 0);
  EXPECT_EQ(tree.Find("b", TreeIds{1, 2, 3}).tokens, 0);
  EXPECT_EQ(tree.Find("a", TreeIds{1, 2, 3}).tokens, 3);
}

TEST(PrefixTree, AnEndWithinAChunkIsReplacedByWhatGoesOn) {
  ModelTree tree(kChunk);
  int next = 1;
  Add(tree, "", {1, 2}, next);
  EXPECT_THAT(Add(tree, "", {1, 2, 3}, next), ElementsAre(1));
  EXPECT_THAT(Add(tree, "", {1}, next), IsEmpty()) << "it is that one's";
  EXPECT_THAT(Add(tree, "", {1, 2, 3, 4, 5}, next), ElementsAre(2));
  EXPECT_EQ(tree.nodes(), 2);
  EXPECT_THAT(Values(tree.Find("", TreeIds{1, 2, 3, 4, 5})), ElementsAre(3, 4));
}

TEST(PrefixTree, OthersThatGoOnOtherwiseStayBesideEachOther) {
  ModelTree tree(kChunk);
  int next = 1;
  Add(tree, "", {1, 2, 3, 4, 5, 6}, next);
  EXPECT_THAT(Add(tree, "", {1, 2, 3, 4, 5, 7, 8}, next), IsEmpty());
  EXPECT_THAT(Values(tree.Find("", TreeIds{1, 2, 3, 4, 5, 7})), ElementsAre(1, 3));
  EXPECT_EQ(tree.nodes(), 3);
}

// Those that part within a chunk: whatever comes behind, one node is used, and the others grow old.
TEST(PrefixTree, OfThoseThatHaveAsMuchItFindsAlwaysTheSameOne) {
  ModelTree tree(kChunk);
  int next = 1;
  for (const int32_t last : {30, 10, 20}) Add(tree, "", {1, 2, last, 4}, next);
  const std::vector<int> one = Values(tree.Find("", TreeIds{1, 2}));
  ASSERT_EQ(one.size(), 1u);
  for (const int32_t other : {5, 15, 25, 35}) {
    const ModelTree::Known known = tree.Find("", TreeIds{1, 2, other, 4});
    EXPECT_EQ(known.tokens, 2) << other;
    EXPECT_EQ(Values(known), one) << other;
  }
}

TEST(PrefixTree, EachOfManyThatPartAtOnePlaceIsFoundAndGoes) {
  constexpr int kMany = 3000;
  ModelTree tree(kChunk);
  int next = 0;
  const auto one_of = [](int i) { return TreeIds{1, 2, 3, 4, 5, (i * 7919) % kMany, 6}; };
  for (int i = 0; i < kMany; ++i) EXPECT_THAT(Add(tree, "", one_of(i), next), IsEmpty());
  EXPECT_EQ(tree.nodes(), 1 + kMany);
  for (int i = 0; i < kMany; ++i) ASSERT_THAT(Values(tree.Find("", one_of(i))), ElementsAre(0, 1 + i));
  EXPECT_EQ(tree.Find("", TreeIds{1, 2, 3, 4, 5, kMany, 6}).tokens, 5);
  for (int i = 0; i < kMany; ++i) ASSERT_EQ(tree.RemoveOldest(), 1 + i);
  EXPECT_EQ(tree.tokens(), kChunk);
}

TEST(PrefixTree, TheOldestEndGoesAndAUsedOneStays) {
  ModelTree tree(kChunk);
  int next = 1;
  Add(tree, "", {1, 2, 3, 4, 5}, next);
  Add(tree, "", {1, 2, 3, 4, 6}, next);
  tree.Use(tree.Find("", TreeIds{1, 2, 3, 4, 5}));
  EXPECT_EQ(tree.RemoveOldest(), 3);
  EXPECT_EQ(tree.RemoveOldest(), 2) << "an end before what it goes on from";
  EXPECT_EQ(tree.RemoveOldest(), 1);
  EXPECT_FALSE(tree.RemoveOldest().has_value());
  EXPECT_EQ(tree.tokens(), 0);
  EXPECT_EQ(tree.nodes(), 0);
}

TEST(PrefixTree, OfNoTokensNothingIsKept) {
  ModelTree tree(kChunk);
  int next = 1;
  EXPECT_THAT(Add(tree, "a", {}, next), IsEmpty());
  EXPECT_EQ(tree.nodes(), 0);
  EXPECT_FALSE(tree.RemoveOldest().has_value());
}

TEST(PrefixTree, ASaltIsRemovedWithAllThatBeganUnderIt) {
  ModelTree tree(kChunk);
  int next = 1;
  Add(tree, "a", {1, 2, 3, 4, 5}, next);
  Add(tree, "a", {1, 2, 3, 4, 6, 7}, next);
  Add(tree, "", {1, 2, 3, 4, 5}, next);
  EXPECT_EQ(tree.SizeOf("a").nodes, 3);
  EXPECT_EQ(tree.SizeOf("a").tokens, 4 + 1 + 2);
  EXPECT_EQ(tree.SizeOf("b").nodes, 0);
  EXPECT_THAT(tree.RemoveSalt("b"), IsEmpty());
  EXPECT_THAT(tree.RemoveSalt("a"), UnorderedElementsAre(1, 2, 3));
  EXPECT_EQ(tree.Find("a", TreeIds{1, 2, 3, 4, 5}).tokens, 0);
  EXPECT_EQ(tree.Find("", TreeIds{1, 2, 3, 4, 5}).tokens, 5);
  EXPECT_EQ(tree.SizeOf("a").nodes, 0);
  EXPECT_EQ(tree.tokens(), 5);
  EXPECT_THAT(Add(tree, "a", {1, 2}, next), IsEmpty()) << "and begins anew";
  EXPECT_THAT(Values(tree.Find("a", TreeIds{1, 2})), ElementsAre(6));
}

TEST(PrefixTree, ABeginningIsRemovedWithAllThatBeginsWithIt) {
  ModelTree tree(kChunk);
  int next = 1;
  Add(tree, "", {1, 2, 3, 4, 5, 6, 7, 8, 9}, next);  // 1, 2, 3
  Add(tree, "", {1, 2, 3, 4, 5, 6, 9}, next);        // 4
  Add(tree, "", {1, 2, 3, 4, 5, 7}, next);           // 5
  EXPECT_THAT(tree.RemoveBeginning("a", TreeIds{1}, kAll), IsEmpty());
  EXPECT_THAT(tree.RemoveBeginning("", TreeIds{1, 2, 3, 4, 5, 6, 7, 8, 9, 1}, kAll), IsEmpty()) << "it has less";
  EXPECT_THAT(tree.RemoveBeginning("", TreeIds{1, 2, 3, 5, 5}, kAll), IsEmpty());
  EXPECT_THAT(tree.RemoveBeginning("", TreeIds{1, 2, 3, 4, 5, 6}, kAll), UnorderedElementsAre(2, 3, 4));
  EXPECT_THAT(Values(tree.Find("", TreeIds{1, 2, 3, 4, 5, 6})), ElementsAre(1, 5));
  EXPECT_THAT(tree.RemoveBeginning("", TreeIds{1, 2, 3, 4}, kAll), UnorderedElementsAre(1, 5));
  EXPECT_EQ(tree.nodes(), 0);
  EXPECT_EQ(tree.tokens(), 0);
  EXPECT_FALSE(tree.RemoveOldest().has_value());
}

TEST(PrefixTree, OfABeginningThatIsRemovedWhatMayNotGoStaysWithWhatIsBeforeIt) {
  ModelTree tree(kChunk);
  int next = 1;
  Add(tree, "", {1, 2, 3, 4, 5, 6, 7, 8, 9}, next);  // 1, 2, 3
  Add(tree, "", {1, 2, 3, 4, 5, 6, 9}, next);        // 4
  const auto but = [](int stays) { return [stays](int value) { return value != stays; }; };
  EXPECT_THAT(tree.RemoveBeginning("", TreeIds{1, 2}, but(2)), UnorderedElementsAre(3, 4));
  EXPECT_EQ(tree.Find("", TreeIds{1, 2, 3, 4, 5, 6, 7, 8, 9}).tokens, 8);
  EXPECT_THAT(tree.RemoveBeginning("", TreeIds{1, 2}, but(1)), UnorderedElementsAre(2));
  EXPECT_EQ(tree.RemoveOldest(), 1);
  EXPECT_EQ(tree.nodes(), 0);
}

// A list of chunks, each with all ids up to its own end, in the order of their use.
class PlainList {
 public:
  struct Chunk {
    std::string salt;
    TreeIds ids;  // of the whole beginning
    int value = 0;
    size_t begin() const { return (ids.size() - 1) / kChunk * kChunk; }
  };

  int64_t Find(const std::string& salt, const TreeIds& ids) const {
    int64_t most = 0;
    for (const Chunk& chunk : chunks_) {
      if (chunk.salt != salt) continue;
      const auto common = static_cast<size_t>(
          std::mismatch(chunk.ids.begin(), chunk.ids.begin() + std::min(chunk.ids.size(), ids.size()), ids.begin())
              .first -
          chunk.ids.begin());
      if (common > chunk.begin()) most = std::max(most, static_cast<int64_t>(common));
    }
    return most;
  }
  // `values` as the tree gave them, by chunk.
  std::vector<int> Add(const std::string& salt, const TreeIds& ids, const std::vector<int>& values) {
    std::vector<int> dropped;
    for (size_t begin = 0; begin < ids.size(); begin += kChunk) {
      const TreeIds own = First(ids, begin + kChunk);
      std::erase_if(chunks_, [&](const Chunk& chunk) {
        const bool ends_within = chunk.salt == salt && chunk.begin() == begin && chunk.ids.size() < own.size() &&
                                 chunk.ids == First(own, chunk.ids.size());
        if (ends_within) dropped.push_back(chunk.value);
        return ends_within;
      });
      const auto found = std::find_if(chunks_.begin(), chunks_.end(), [&](const Chunk& chunk) {
        return chunk.salt == salt && chunk.value == values[begin / kChunk];
      });
      if (found == chunks_.end()) {
        chunks_.push_back({salt, own, values[begin / kChunk]});
      } else {
        EXPECT_EQ(First(found->ids, own.size()), own);
        EXPECT_EQ(found->begin(), begin);
        chunks_.splice(chunks_.end(), chunks_, found);
      }
    }
    return dropped;
  }
  void Use(const std::vector<int>& values) {
    for (const int value : values) {
      chunks_.splice(chunks_.end(), chunks_, std::find_if(chunks_.begin(), chunks_.end(), [value](const Chunk& chunk) {
                       return chunk.value == value;
                     }));
    }
  }
  // -1: there is none.
  int RemoveOldest() {
    for (auto chunk = chunks_.begin(); chunk != chunks_.end(); ++chunk) {
      const bool is_end = std::none_of(chunks_.begin(), chunks_.end(), [&](const Chunk& other) {
        return other.salt == chunk->salt && other.begin() == chunk->ids.size() &&
               First(other.ids, chunk->ids.size()) == chunk->ids;
      });
      if (!is_end) continue;
      const int value = chunk->value;
      chunks_.erase(chunk);
      return value;
    }
    return -1;
  }
  std::vector<int> RemoveSalt(const std::string& salt) {
    std::vector<int> removed;
    std::erase_if(chunks_, [&](const Chunk& chunk) {
      if (chunk.salt == salt) removed.push_back(chunk.value);
      return chunk.salt == salt;
    });
    return removed;
  }
  template <typename MayGo>
  std::vector<int> RemoveBeginning(const std::string& salt, const TreeIds& ids, const MayGo& may_go) {
    std::vector<TreeIds> stay;
    for (const Chunk& chunk : chunks_) {
      if (chunk.salt == salt && !may_go(chunk.value)) stay.push_back(chunk.ids);
    }
    std::vector<int> removed;
    std::erase_if(chunks_, [&](const Chunk& chunk) {
      const bool stays = std::any_of(stay.begin(), stay.end(),
                                     [&](const TreeIds& other) { return First(other, chunk.ids.size()) == chunk.ids; });
      const bool goes = chunk.salt == salt && First(chunk.ids, ids.size()) == ids && !stays;
      if (goes) removed.push_back(chunk.value);
      return goes;
    });
    return removed;
  }
  const std::list<Chunk>& chunks() const { return chunks_; }

 private:
  std::list<Chunk> chunks_;
};

TEST(PrefixTree, AgreesWithAPlainList) {
  ModelTree tree(kChunk);
  PlainList list;
  std::mt19937 random(7);
  const std::string salts[] = {"", "a"};
  int next = 0, longest = 0;
  for (int step = 0; step < 60'000; ++step) {
    TreeIds ids(random() % 14);
    for (int32_t& id : ids) id = random() % 5 == 0 ? 1 : 0;  // many begin alike
    const std::string& salt = salts[random() % 4 == 0 ? 1 : 0];
    const ModelTree::Known known = tree.Find(salt, ids);
    ASSERT_EQ(known.tokens, list.Find(salt, ids)) << "at step " << step;
    ASSERT_EQ(static_cast<int64_t>(known.nodes.size()), (known.tokens + kChunk - 1) / kChunk);
    longest = std::max(longest, static_cast<int>(known.tokens));
    switch (random() % 5) {
      case 0: {
        std::vector<int> values;
        const std::vector<int> dropped = tree.Add(salt, ids, [&](int64_t chunk, int& value, bool fresh) {
          ASSERT_EQ(chunk, static_cast<int64_t>(values.size()));
          if (fresh) value = next++;
          values.push_back(value);
        });
        ASSERT_THAT(list.Add(salt, ids, values), ::testing::UnorderedElementsAreArray(dropped)) << "at step " << step;
        break;
      }
      case 1:
        list.Use(Values(known));
        tree.Use(known);
        break;
      case 2:
        ASSERT_EQ(tree.RemoveOldest().value_or(-1), list.RemoveOldest()) << "at step " << step;
        break;
      case 3: {
        if (ids.empty() || random() % 5 != 0) break;  // or nothing would grow
        const int stays = static_cast<int>(random() % 4);
        const auto may_go = [stays](int value) { return value % 4 != stays; };
        ASSERT_THAT(tree.RemoveBeginning(salt, ids, may_go),
                    ::testing::UnorderedElementsAreArray(list.RemoveBeginning(salt, ids, may_go)));
        break;
      }
      default:
        if (random() % 50 != 0) break;
        ASSERT_THAT(tree.RemoveSalt(salt), ::testing::UnorderedElementsAreArray(list.RemoveSalt(salt)));
        break;
    }
    int64_t tokens = 0, tokens_of_salt = 0, nodes_of_salt = 0;
    for (const PlainList::Chunk& chunk : list.chunks()) {
      const auto own = static_cast<int64_t>(chunk.ids.size() - chunk.begin());
      tokens += own;
      if (chunk.salt == salt) tokens_of_salt += own, ++nodes_of_salt;
    }
    ASSERT_EQ(tree.nodes(), static_cast<int64_t>(list.chunks().size()));
    ASSERT_EQ(tree.tokens(), tokens);
    ASSERT_EQ(tree.SizeOf(salt).nodes, nodes_of_salt);
    ASSERT_EQ(tree.SizeOf(salt).tokens, tokens_of_salt);
  }
  EXPECT_EQ(longest, 13);
}

}  // namespace
}  // namespace runahead
