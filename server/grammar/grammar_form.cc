#include "server/grammar/grammar_form.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/grammar/compile_cost.h"
#include "server/grammar/form_graph.h"
#include "server/grammar/structure_spec.h"

namespace runahead {
namespace {

// Of xgrammar's own: they would look at token ids, or at how a text came to be.
constexpr absl::string_view kMacros[] = {"TagDispatch", "TokenTagDispatch", "Token", "ExcludeToken",
                                         "Regex",       "Substring"};

constexpr int64_t kTextShare = 16;  // so many characters of a text cost as much as a class

bool BeginsName(char c) {
  return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_';
}

bool GoesOnName(char c) {
  return BeginsName(c) || absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '-' || c == '.';
}

class GrammarReader {
 public:
  explicit GrammarReader(absl::string_view text) : text_(text) {}

  absl::Status Read() {
    SkipBlanks();
    while (at_ < text_.size()) RUNAHEAD_RETURN_IF_ERROR(Rule());
    graph_.AddReference("the grammar", "root");
    if (const auto place = graph_.FirstUndefined())
      return absl::InvalidArgumentError(*place + ": there is no such rule");
    if (const auto place = graph_.FirstEndless()) {
      return absl::InvalidArgumentError(*place + ": no text of this ends: it refers to itself");
    }
    return absl::OkStatus();
  }

 private:
  // Part of a rule: its node, and its size when all counts are written out.
  struct Part {
    int node;
    int64_t written;
  };

  std::string Place() const {
    return absl::StrCat("at line ", 1 + std::count(text_.begin(), text_.begin() + std::min(at_, text_.size()), '\n'));
  }
  absl::Status Refuse(absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat(Place(), ": ", why));
  }

  bool Has(absl::string_view what) const { return text_.substr(std::min(at_, text_.size()), what.size()) == what; }
  void SkipBlanks() {
    while (at_ < text_.size() && (absl::ascii_isspace(static_cast<unsigned char>(text_[at_])) || text_[at_] == '#')) {
      at_ = text_[at_] == '#' ? std::min(text_.find('\n', at_), text_.size()) : at_ + 1;
    }
  }
  bool Take(absl::string_view what) {
    if (!Has(what)) return false;
    at_ += what.size();
    SkipBlanks();
    return true;
  }

  absl::string_view Name() {
    const size_t begin = at_;
    while (at_ < text_.size() && GoesOnName(text_[at_])) ++at_;
    const absl::string_view name = text_.substr(begin, at_ - begin);
    SkipBlanks();
    return name;
  }

  absl::Status Rule() {
    if (!BeginsName(text_[at_])) return Refuse("a rule begins with its name: name ::= ...");
    const std::string name(Name());
    if (Has("[")) return Refuse(absl::StrCat("options of rules, as those of ", Printable(name), ", are not supported"));
    if (!Take("::=")) return Refuse(absl::StrCat("::= is missing behind the name ", Printable(name)));
    RUNAHEAD_ASSIGN_OR_RETURN(const Part part, Alternatives(0));
    graph_.Define(name, part.node);
    written_ += part.written;
    if (written_ <= kMaxWrittenOut) return absl::OkStatus();
    return Refuse(absl::StrCat("with all counts written out, the grammar is longer than ", kMaxWrittenOut));
  }

  absl::StatusOr<Part> Alternatives(int depth) {
    const std::string place = Place();
    std::vector<int> nodes;
    int64_t written = 0;
    do {
      RUNAHEAD_ASSIGN_OR_RETURN(const Part part, Sequence(depth));
      nodes.push_back(part.node);
      written += std::max<int64_t>(part.written, 1);
    } while (Take("|"));
    return Part{graph_.AddAny(place, std::move(nodes)), written};
  }

  // Whether the name here is that of the next rule.
  bool AtRule() {
    const size_t here = at_;
    Name();
    const bool rule =
        Has("::=") ||
        (Has("[") && text_.substr(std::min(text_.find(']', at_), text_.size())).substr(0, 12).find("::=") !=
                         absl::string_view::npos);
    at_ = here;
    return rule;
  }

  absl::StatusOr<Part> Sequence(int depth) {
    const std::string place = Place();
    std::vector<int> nodes;
    int64_t written = 0;
    while (at_ < text_.size() && !Has("|") && !Has(")") && !(BeginsName(text_[at_]) && AtRule())) {
      RUNAHEAD_ASSIGN_OR_RETURN(Part part, Atom(depth));
      RUNAHEAD_RETURN_IF_ERROR(Repetition(part));
      nodes.push_back(part.node);
      written += part.written;
      if (written > kMaxWrittenOut) {
        return Refuse(absl::StrCat("with all counts written out, this is longer than ", kMaxWrittenOut));
      }
    }
    return Part{graph_.AddAll(place, std::move(nodes)), written};
  }

  absl::StatusOr<Part> Atom(int depth) {
    const std::string place = Place();
    if (Has("(=")) return Refuse("looking ahead is not supported");
    if (Has("(")) {
      if (depth == kMaxStructureDepth) return Refuse(absl::StrCat("groups are deeper than ", kMaxStructureDepth));
      Take("(");
      RUNAHEAD_ASSIGN_OR_RETURN(const Part part, Alternatives(depth + 1));
      if (!Take(")")) return Refuse("a ( without its )");
      return part;
    }
    if (Has("\"")) return Delimited('"', place);
    if (Has("[")) return Delimited(']', place);
    if (!BeginsName(text_[at_]))
      return Refuse(absl::StrCat(Printable(text_.substr(at_, 1)), " is not understood here"));
    const std::string name(Name());
    if (std::find(std::begin(kMacros), std::end(kMacros), name) != std::end(kMacros)) {
      return Refuse(absl::StrCat(name, " is not supported"));
    }
    return Part{graph_.AddReference(absl::StrCat(place, ", ", Printable(name)), name), 1};
  }

  // Characters up to `end`, which are on one line.
  absl::StatusOr<Part> Delimited(char end, const std::string& place) {
    int64_t written = 0;
    for (++at_; at_ < text_.size() && text_[at_] != '\n'; ++at_, ++written) {
      if (text_[at_] == '\\') {
        ++at_;
      } else if (text_[at_] == end) {
        ++at_;
        SkipBlanks();
        return Part{graph_.AddAll(place, {}), end == ']' ? 1 : 1 + written / kTextShare};
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": ", end == ']' ? "a [ without its ]" : "a text without its end"));
  }

  absl::Status Repetition(Part& part) {
    if (Take("?") || Take("*")) {
      part.node = graph_.AddAny(Place(), {part.node, graph_.AddAll(Place(), {})});
    } else if (Has("{")) {
      RUNAHEAD_RETURN_IF_ERROR(Counts(part));
    } else if (!Take("+")) {
      return absl::OkStatus();
    }
    if (Has("?") || Has("*") || Has("+") || Has("{")) return Refuse("a repetition of a repetition wants a group");
    return absl::OkStatus();
  }

  absl::Status Counts(Part& part) {
    Take("{");
    RUNAHEAD_ASSIGN_OR_RETURN(const int64_t least, Count());
    int64_t most = least;
    if (Take(",")) {
      most = least + 1;
      if (!Has("}")) {
        RUNAHEAD_ASSIGN_OR_RETURN(most, Count());
      }
    }
    if (!Take("}") || most < least) return Refuse("a repetition is {n}, {n,} or {n,m}, with m not less than n");
    if (least == 0) part.node = graph_.AddAny(Place(), {part.node, graph_.AddAll(Place(), {})});
    part.written *= std::max<int64_t>(2 * most - least, 1);
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Count() {
    const size_t begin = at_;
    while (at_ < text_.size() && absl::ascii_isdigit(static_cast<unsigned char>(text_[at_]))) ++at_;
    int64_t count = 0;
    const bool read = absl::SimpleAtoi(text_.substr(begin, at_ - begin), &count);
    SkipBlanks();
    if (read && count <= kMaxCount) return count;
    return Refuse(absl::StrCat("a repetition's numbers are from 0 to ", kMaxCount));
  }

  const absl::string_view text_;
  size_t at_ = 0;
  int64_t written_ = 0;
  FormGraph graph_;
};

}  // namespace

absl::Status CheckGrammar(std::string_view grammar) {
  return GrammarReader(absl::string_view(grammar.data(), grammar.size())).Read();
}

}  // namespace runahead
