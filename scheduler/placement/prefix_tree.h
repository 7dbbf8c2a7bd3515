// Beginnings of token sequences: which is the longest that a prompt has in common with them? Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace runahead {

// Sequences are cut into chunks of `chunk` tokens; those that begin alike share the nodes of their first chunks, each
// of which has a Value of its owner's. Tokens are compared, never hashes. Sequences of one salt know nothing of those
// of another. Where many part at one place, finding one there takes the logarithm of how many. For one thread at a
// time.
template <typename Value>
class PrefixTree {
 public:
  struct Node;

 private:
  // In the order of their ids those that have most in common stand beside each other.
  struct ByIds {
    using is_transparent = void;
    static absl::Span<const int32_t> Of(const std::unique_ptr<Node>& node) { return node->ids; }
    static absl::Span<const int32_t> Of(absl::Span<const int32_t> ids) { return ids; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return Of(a) < Of(b);
    }
  };
  // The ids of none of them begin with those of another.
  using Children = std::set<std::unique_ptr<Node>, ByIds>;

 public:
  struct Node {
    std::vector<int32_t> ids;  // of its chunk; fewer than `chunk` only in a leaf
    Value value{};

   private:
    friend class PrefixTree;
    Node* parent = nullptr;  // null: of a salt's own, which has no ids
    std::string salt;        // of that one
    Children children;
    uint64_t used = 0;  // by a count of uses
  };

  // What a prompt has in common with what was added: all tokens of all nodes but the last, and of that one the first
  // ones, at least one.
  struct Known {
    std::vector<Node*> nodes;  // in token order; valid until something is added or removed
    int64_t tokens = 0;
  };

  explicit PrefixTree(int64_t chunk) : chunk_(chunk) {}
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  int64_t chunk() const { return chunk_; }
  int64_t nodes() const { return nodes_; }
  int64_t tokens() const { return tokens_; }  // of all nodes

  // The same of one salt's. Takes as long as it takes to look at each of its nodes.
  struct Size {
    int64_t nodes = 0, tokens = 0;
  };
  Size SizeOf(absl::string_view salt) const {
    Size size;
    const auto root = roots_.find(salt);
    std::vector<const Node*> left;
    if (root != roots_.end()) left.push_back(root->second.get());
    while (!left.empty()) {
      const Node* const node = left.back();
      left.pop_back();
      if (node->parent != nullptr) ++size.nodes;
      size.tokens += static_cast<int64_t>(node->ids.size());
      for (const std::unique_ptr<Node>& child : node->children) left.push_back(child.get());
    }
    return size;
  }

  // The longest; no tokens where nothing begins as `ids` do. Changes nothing.
  Known Find(absl::string_view salt, absl::Span<const int32_t> ids) const {
    Known known;
    const auto root = roots_.find(salt);
    const Node* at = root == roots_.end() ? nullptr : root->second.get();
    while (at != nullptr && known.tokens < static_cast<int64_t>(ids.size())) {
      const absl::Span<const int32_t> rest = ids.subspan(known.tokens);
      const int64_t most = MostInCommon(at->children, rest);
      if (most == 0) break;
      // Of those that have as much, always the same one: else each prompt would make a different old one newly used.
      Node* const best = at->children.lower_bound(rest.first(most))->get();
      known.nodes.push_back(best);
      known.tokens += most;
      at = most == chunk_ ? best : nullptr;
    }
    return known;
  }

  // They were used just now, later than all others.
  void Use(const Known& known) {
    for (Node* node : known.nodes) Touch(*node);
  }

  // The sequence is known from now on, and was used just now. `take(chunk, value, fresh)` is called for each of its
  // chunks in order: with a value of its own where it is fresh, else with that of who had the chunk, which the caller
  // may exchange for its own where the chunk is whole. A last chunk that is not whole, and with which another one
  // begins, is that one's, and stays so.
  // Returns the values of chunks that were not whole, and that this one goes on from: they are known no more.
  template <typename Take>
  std::vector<Value> Add(absl::string_view salt, absl::Span<const int32_t> ids, const Take& take) {
    std::vector<Value> dropped;
    if (ids.empty()) return dropped;  // or its salt would stay for ever
    Node* at = Root(salt);
    const int64_t size = static_cast<int64_t>(ids.size());
    for (int64_t begin = 0; begin < size; begin += chunk_) {
      const absl::Span<const int32_t> own = ids.subspan(begin, std::min(chunk_, size - begin));
      const auto after = at->children.lower_bound(own);
      Node* next = after != at->children.end() && BeginsWith((*after)->ids, own) ? after->get() : nullptr;
      const bool fresh = next == nullptr;
      if (fresh) {
        // A leaf that ends within this chunk stands right before it, and is the only one.
        Node* const before = after != at->children.begin() ? std::prev(after)->get() : nullptr;
        if (before != nullptr && BeginsWith(own, before->ids)) {
          dropped.push_back(std::move(before->value));
          Remove(*before);
        }
        next = AddChild(*at, own);
      }
      take(begin / chunk_, next->value, fresh);
      Touch(*next);
      at = next;
    }
    return dropped;
  }

  // Of the nodes that no other follows, the one that was used longest ago goes. Nothing where there is none.
  std::optional<Value> RemoveOldest() {
    if (leaves_.empty()) return std::nullopt;
    Node& oldest = *leaves_.begin()->second;
    Value value = std::move(oldest.value);
    const Node& parent = *oldest.parent;
    Remove(oldest);
    if (parent.parent == nullptr && parent.children.empty()) roots_.erase(std::string(parent.salt));
    return value;
  }

  // All sequences of the salt are known no more. Returns the values of their chunks.
  std::vector<Value> RemoveSalt(absl::string_view salt) {
    std::vector<Value> removed;
    const auto root = roots_.find(salt);
    if (root == roots_.end()) return removed;
    const auto all = [](const Value&) { return true; };
    while (!root->second->children.empty()) RemoveAll(**root->second->children.begin(), all, removed);
    roots_.erase(root);
    return removed;
  }

  // Whatever begins with all of `ids`, which are not none, is known no more from the chunk on in which they end, but
  // for chunks of whose values `may_go` says no, and those before them. Returns the values of the chunks that went.
  template <typename MayGo>
  std::vector<Value> RemoveBeginning(absl::string_view salt, absl::Span<const int32_t> ids, const MayGo& may_go) {
    std::vector<Value> removed;
    const auto root = roots_.find(salt);
    if (root == roots_.end()) return removed;
    Node* at = root->second.get();
    for (; static_cast<int64_t>(ids.size()) > chunk_; ids.remove_prefix(chunk_)) {
      const auto next = at->children.find(ids.first(chunk_));
      if (next == at->children.end()) return removed;
      at = next->get();
    }
    std::vector<Node*> ends;
    for (auto next = at->children.lower_bound(ids); next != at->children.end() && BeginsWith((*next)->ids, ids);
         ++next) {
      ends.push_back(next->get());
    }
    for (Node* const end : ends) RemoveAll(*end, may_go, removed);
    if (root->second->children.empty()) roots_.erase(root);
    return removed;
  }

  // Likewise of the node, which is there, and all that follow it.
  template <typename MayGo>
  std::vector<Value> RemoveFrom(Node& node, const MayGo& may_go) {
    std::vector<Value> removed;
    const Node* root = &node;
    while (root->parent != nullptr) root = root->parent;
    RemoveAll(node, may_go, removed);
    if (root->children.empty()) roots_.erase(std::string(root->salt));
    return removed;
  }

 private:
  static int64_t Common(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
    const size_t most = std::min(a.size(), b.size());
    return std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
  }
  static bool BeginsWith(absl::Span<const int32_t> ids, absl::Span<const int32_t> beginning) {
    return Common(ids, beginning) == static_cast<int64_t>(beginning.size());
  }
  // How many first ids of `rest` one of the children has: the last before it, or the first after it.
  static int64_t MostInCommon(const Children& children, absl::Span<const int32_t> rest) {
    const auto after = children.lower_bound(rest);
    int64_t most = 0;
    if (after != children.end()) most = Common((*after)->ids, rest);
    if (after != children.begin()) most = std::max(most, Common((*std::prev(after))->ids, rest));
    return most;
  }

  Node* Root(absl::string_view salt) {
    std::unique_ptr<Node>& root = roots_[salt];
    if (root == nullptr) {
      root = std::make_unique<Node>();
      root->salt = std::string(salt);
    }
    return root.get();
  }

  Node* AddChild(Node& parent, absl::Span<const int32_t> ids) {
    leaves_.erase({parent.used, &parent});
    auto node = std::make_unique<Node>();
    node->ids.assign(ids.begin(), ids.end());
    node->parent = &parent;
    tokens_ += static_cast<int64_t>(ids.size());
    ++nodes_;
    leaves_.insert({node->used, node.get()});
    return parent.children.insert(std::move(node)).first->get();
  }

  void Touch(Node& node) {
    const bool leaf = leaves_.erase({node.used, &node}) > 0;
    node.used = ++uses_;
    if (leaf) leaves_.insert({node.used, &node});
  }

  // It, and all that follow it, but for those that may not go, and those before them.
  template <typename MayGo>
  void RemoveAll(Node& top, const MayGo& may_go, std::vector<Value>& removed) {
    std::vector<Node*> nodes = {&top};  // each before those that follow it
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const std::unique_ptr<Node>& child : nodes[i]->children) nodes.push_back(child.get());
    }
    for (; !nodes.empty(); nodes.pop_back()) {
      Node& node = *nodes.back();
      if (!node.children.empty() || !may_go(node.value)) continue;
      removed.push_back(std::move(node.value));
      Remove(node);
    }
  }

  // Of a leaf. Its parent may be one then.
  void Remove(Node& node) {
    Node& parent = *node.parent;
    leaves_.erase({node.used, &node});
    tokens_ -= static_cast<int64_t>(node.ids.size());
    --nodes_;
    parent.children.erase(parent.children.find(absl::MakeConstSpan(node.ids)));
    if (parent.children.empty() && parent.parent != nullptr) leaves_.insert({parent.used, &parent});
  }

  const int64_t chunk_;
  absl::flat_hash_map<std::string, std::unique_ptr<Node>> roots_;
  std::set<std::pair<uint64_t, Node*>> leaves_;  // by use, the oldest first
  uint64_t uses_ = 0;
  int64_t tokens_ = 0;
  int64_t nodes_ = 0;
};

}  // namespace runahead
