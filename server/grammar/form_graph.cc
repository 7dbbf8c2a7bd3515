#include "server/grammar/form_graph.h"

#include <algorithm>

namespace runahead {

int FormGraph::AddAll(std::string place, std::vector<int> children) {
  nodes_.push_back({std::move(place), Kind::kAll, std::move(children), ""});
  return static_cast<int>(nodes_.size()) - 1;
}

int FormGraph::AddAny(std::string place, std::vector<int> children) {
  nodes_.push_back({std::move(place), Kind::kAny, std::move(children), ""});
  return static_cast<int>(nodes_.size()) - 1;
}

int FormGraph::AddReference(std::string place, std::string uri) {
  nodes_.push_back({std::move(place), Kind::kReference, {}, std::move(uri)});
  return static_cast<int>(nodes_.size()) - 1;
}

std::optional<std::string> FormGraph::FirstUndefined() const {
  for (const Node& node : nodes_) {
    if (node.kind == Kind::kReference && !defined_.contains(node.uri)) return node.place;
  }
  return std::nullopt;
}

std::optional<std::string> FormGraph::FirstEndless() const {
  if (const auto place = FirstInCircle()) return place;
  std::vector<char> ends(nodes_.size(), 0);
  // Each round but the last finds a node; children stand before their parents, so only references take more than one.
  for (bool found = true; found;) {
    found = false;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (ends[i] || !Ends(nodes_[i], ends)) continue;
      ends[i] = 1;
      found = true;
    }
  }
  const auto endless = std::find(ends.begin(), ends.end(), 0);
  if (endless == ends.end()) return std::nullopt;
  return nodes_[endless - ends.begin()].place;
}

bool FormGraph::Ends(const Node& node, absl::Span<const char> ends) const {
  const auto child_ends = [&](int child) { return ends[child] != 0; };
  switch (node.kind) {
    case Kind::kAll:
      return std::all_of(node.children.begin(), node.children.end(), child_ends);
    case Kind::kAny:
      return std::any_of(node.children.begin(), node.children.end(), child_ends);
    case Kind::kReference:
      break;
  }
  return child_ends(defined_.at(node.uri));
}

std::vector<int> FormGraph::Same(const Node& node) const {
  if (node.kind == Kind::kReference) return {defined_.at(node.uri)};
  return node.kind == Kind::kAny ? node.children : std::vector<int>();
}

std::optional<std::string> FormGraph::FirstInCircle() const {
  // Nodes are taken away that lead nowhere; what is left leads around.
  std::vector<int> leads(nodes_.size());
  std::vector<std::vector<int>> from(nodes_.size());
  std::vector<int> done;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (const int next : Same(nodes_[i])) {
      ++leads[i];
      from[next].push_back(static_cast<int>(i));
    }
    if (leads[i] == 0) done.push_back(static_cast<int>(i));
  }
  while (!done.empty()) {
    const int node = done.back();
    done.pop_back();
    for (const int before : from[node]) {
      if (--leads[before] == 0) done.push_back(before);
    }
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (leads[i] > 0) return nodes_[i].place;
  }
  return std::nullopt;
}

}  // namespace runahead
