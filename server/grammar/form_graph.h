// What of a schema, or of a grammar, says whether texts of it end.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace runahead {

// Nodes are schemas or parts of rules, by the order in which they were added. A reference is by a URI, or by a name.
class FormGraph {
 public:
  // A text has all of these, inside of it; none: it stands for itself.
  int AddAll(std::string place, std::vector<int> children);
  // A text is what one of these accepts.
  int AddAny(std::string place, std::vector<int> children);
  int AddReference(std::string place, std::string uri);
  void Define(const std::string& uri, int node) { defined_[uri] = node; }

  // The place of a reference to what is not defined.
  std::optional<std::string> FirstUndefined() const;
  // The place of a node that accepts no text that ends, or that is reached from itself with no AddAll between.
  std::optional<std::string> FirstEndless() const;

 private:
  enum class Kind { kAll, kAny, kReference };
  struct Node {
    std::string place;
    Kind kind;
    std::vector<int> children;
    std::string uri;  // kReference
  };
  bool Ends(const Node& node, absl::Span<const char> ends) const;
  // The nodes whose texts are texts of this one.
  std::vector<int> Same(const Node& node) const;
  std::optional<std::string> FirstInCircle() const;

  std::vector<Node> nodes_;
  absl::flat_hash_map<std::string, int> defined_;
};

}  // namespace runahead
