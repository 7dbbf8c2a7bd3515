// Which of what is kept goes first: beside orders that weigh what chunks would take to compute, over traffic of several
// kinds, by the seconds of computing that are saved.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "scheduler/placement/prefix_tree.h"
#include "tests/testing/chat_simulation.h"
#include "tests/testing/chat_traffic.h"

namespace runahead {
namespace {

using testing::ChatTraffic;
using testing::PromptSeconds;
using testing::TrafficShape;

constexpr int64_t kOrderChunk = 256;
using OrderIds = absl::Span<const int32_t>;

class Keeper {
 public:
  virtual ~Keeper() = default;
  // How many of the first ids it has, in whole chunks; they are used now.
  virtual int64_t Known(OrderIds ids) = 0;
  // Of whole chunks; afterwards no more than so many are kept.
  virtual void Keep(OrderIds ids, int64_t most_chunks) = 0;
};

// The product's.
class TreeKeeper final : public Keeper {
 public:
  int64_t Known(OrderIds ids) override {
    const auto known = tree_.Find("", ids);
    tree_.Use(known);
    return known.tokens / kOrderChunk * kOrderChunk;
  }
  void Keep(OrderIds ids, int64_t most_chunks) override {
    tree_.Add("", ids, [](int64_t, int&, bool) {});
    while (tree_.nodes() > most_chunks) tree_.RemoveOldest();
  }

 private:
  PrefixTree<int> tree_{kOrderChunk};
};

// As GreedyDual does it: a chunk's rank is its worth above that of what went last, and of the chunks that no other
// follows the one of the least rank goes first.
class GreedyDual final : public Keeper {
 public:
  // Of a chunk that begins at a token, and that so many prompts began with.
  using Worth = std::function<double(int64_t begin, int64_t prompts)>;
  explicit GreedyDual(Worth worth) : worth_(std::move(worth)) {}

  int64_t Known(OrderIds ids) override {
    int64_t known = 0;
    for (const int chunk : Path(ids)) {
      Rank(chunk, ++chunks_[chunk].prompts);
      known += kOrderChunk;
    }
    return known;
  }
  void Keep(OrderIds ids, int64_t most_chunks) override {
    std::vector<int> path = Path(ids);
    int at = path.empty() ? kRoot : path.back();
    for (int64_t begin = static_cast<int64_t>(path.size()) * kOrderChunk;
         begin + kOrderChunk <= static_cast<int64_t>(ids.size()); begin += kOrderChunk) {
      leaves_.erase({chunks_[at].rank, at});
      ++chunks_[at].followers;
      const Key key{at, Hash(ids.subspan(begin, kOrderChunk))};
      at = next_++;
      chunks_[at] = {key, begin, 1};
      children_[key] = at;
      Rank(at, 1);
    }
    while (static_cast<int64_t>(children_.size()) > most_chunks) RemoveLeast();
  }

 private:
  static constexpr int kRoot = 0;
  using Key = std::pair<int, size_t>;  // the chunk before, and what its ids are
  struct Chunk {
    Key key;
    int64_t begin = 0, prompts = 0;
    int followers = 0;
    double rank = 0;
  };

  static size_t Hash(OrderIds ids) {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)});
  }
  std::vector<int> Path(OrderIds ids) const {
    std::vector<int> path;
    int at = kRoot;
    for (; static_cast<int64_t>(ids.size()) >= kOrderChunk; ids.remove_prefix(kOrderChunk)) {
      const auto child = children_.find({at, Hash(ids.first(kOrderChunk))});
      if (child == children_.end()) break;
      path.push_back(at = child->second);
    }
    return path;
  }
  void Rank(int index, int64_t prompts) {
    Chunk& chunk = chunks_[index];
    leaves_.erase({chunk.rank, index});
    chunk.rank =
        inflation_ + worth_(chunk.begin, prompts) + 1e-9 * static_cast<double>(++uses_);  // of equals the older
    if (chunk.followers == 0) leaves_.insert({chunk.rank, index});
  }
  void RemoveLeast() {
    const auto [rank, index] = *leaves_.begin();
    inflation_ = std::max(inflation_, rank);
    leaves_.erase(leaves_.begin());
    const Key key = chunks_[index].key;
    children_.erase(key);
    chunks_.erase(index);
    Chunk& before = chunks_[key.first];
    if (--before.followers == 0 && key.first != kRoot) leaves_.insert({before.rank, key.first});
  }

  const Worth worth_;
  std::map<Key, int> children_;
  std::map<int, Chunk> chunks_;
  std::set<std::pair<double, int>> leaves_;  // by rank
  double inflation_ = 0;
  int64_t uses_ = 0;
  int next_ = kRoot + 1;
};

// Chats that pause for long, so that others come between.
TrafficShape Chats() {
  TrafficShape shape;
  shape.chats = 800;
  shape.pause_s = 300;
  return shape;
}

// Documents of 12,000 to 36,000 tokens, of each of which up to so many questions are asked.
TrafficShape Documents(int documents, int most_turns) {
  TrafficShape shape = Chats();
  shape.chats = documents;
  shape.own_system = 1;
  shape.most_turns = most_turns;
  shape.system_tokens = 24000;
  shape.question_tokens = 60;
  return shape;
}

// Prompts that nobody asks again.
TrafficShape Scan(int prompts) {
  TrafficShape shape = Documents(prompts, 1);
  shape.system_tokens = 1000;
  return shape;
}

struct Traffic {
  std::string name;
  std::vector<TrafficShape> shapes;  // all of them together
};

std::vector<Traffic> AllTraffic() {
  return {{"chats", {Chats()}},
          {"documents, some questions each, beside chats", {Documents(40, 12), Chats()}},
          {"documents, a few questions each, beside chats", {Documents(60, 3), Chats()}},
          {"short prompts that nobody asks again, beside chats", {Scan(8000), Chats()}},
          {"long documents with one question each, beside chats", {Documents(400, 1), Chats()}}};
}

// Seconds of computing that are saved where so many chunks are kept.
double SavedSeconds(const Traffic& traffic, int64_t chunks, Keeper& keeper) {
  std::vector<ChatTraffic> parts;
  std::multimap<double, std::pair<size_t, int>> turns;  // by when: whose chat
  for (size_t part = 0; part < traffic.shapes.size(); ++part) {
    parts.emplace_back(traffic.shapes[part], static_cast<uint32_t>(100'000 * (part + 1)));
    for (int chat = 0; chat < parts[part].chats(); ++chat) {
      turns.emplace(parts[part].begins_s(chat), std::make_pair(part, chat));
    }
  }
  double saved_s = 0;
  while (!turns.empty()) {
    const auto next = turns.extract(turns.begin());
    const auto [part, chat] = next.mapped();
    const ChatTraffic::Turn turn = parts[part].Next(chat);
    saved_s += PromptSeconds(keeper.Known(OrderIds(turn.prompt).first(turn.prompt.size() - 1)));
    std::vector<int32_t> ids = turn.prompt;
    ids.insert(ids.end(), turn.answer.begin(), turn.answer.end());
    ids.resize(ids.size() / kOrderChunk * kOrderChunk);
    keeper.Keep(ids, chunks);
    if (parts[part].GoesOn(chat)) turns.emplace(next.key() + parts[part].PauseS(chat), next.mapped());
  }
  return saved_s;
}

// What a chunk takes to compute, over what it would take at the beginning of a prompt.
double ComputingOf(int64_t begin) {
  const auto seconds = [](int64_t from) { return PromptSeconds(from + kOrderChunk) - PromptSeconds(from); };
  return seconds(begin) / seconds(0);
}

struct Order {
  const char* name;
  GreedyDual::Worth worth;
};

std::vector<Order> OtherOrders() {
  return {{"by what it takes to compute", [](int64_t begin, int64_t) { return ComputingOf(begin); }},
          {"by that, twice that if it was used again",
           [](int64_t begin, int64_t prompts) { return ComputingOf(begin) * (prompts > 1 ? 2 : 1); }},
          {"by that only if it was used again",
           [](int64_t begin, int64_t prompts) { return prompts > 1 ? ComputingOf(begin) : 1; }},
          {"twice as long if it was used again", [](int64_t, int64_t prompts) { return prompts > 1 ? 2 : 1; }}};
}

// The order of the tree is that of use alone. Each other one gains where traffic and store are as it supposes, and
// loses elsewhere: what was dear to compute is worth keeping only if it is asked for again.
TEST(EvictionOrder, NoOtherSavesMoreOfAllTraffic) {
  std::map<std::string, double> worst;  // of an order, over the tree
  for (const Traffic& traffic : AllTraffic()) {
    for (const int64_t chunks : {500, 2000, 5000}) {
      TreeKeeper tree;
      const double by_tree = SavedSeconds(traffic, chunks, tree);
      ASSERT_GT(by_tree, 0);
      for (const Order& order : OtherOrders()) {
        GreedyDual other(order.worth);
        const double over = SavedSeconds(traffic, chunks, other) / by_tree;
        std::cout << traffic.name << ", " << chunks << " chunks, " << order.name << ": " << over << "\n";
        EXPECT_LT(over, 1.2) << traffic.name << ", " << chunks << " chunks, " << order.name;
        const auto [entry, fresh] = worst.try_emplace(order.name, over);
        if (!fresh) entry->second = std::min(entry->second, over);
      }
    }
  }
  for (const auto& [name, over] : worst) EXPECT_LT(over, 0.99) << name << ": nowhere worse, so take it";
}

// Also says that both count alike: where every chunk is worth the same, GreedyDual's order is that of use.
TEST(EvictionOrder, OfTheTreeIsWhatWasUsedLongestAgo) {
  const Traffic traffic = AllTraffic()[1];
  TreeKeeper tree;
  GreedyDual by_use([](int64_t, int64_t) { return 0; });
  const double by_tree = SavedSeconds(traffic, 1000, tree);
  EXPECT_NEAR(SavedSeconds(traffic, 1000, by_use), by_tree, 0.01 * by_tree);
}

}  // namespace
}  // namespace runahead
