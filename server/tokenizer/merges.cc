#include "server/tokenizer/merges.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace runahead {

absl::StatusOr<Merge> MergeOf(const TokenIds& ids, absl::string_view left, absl::string_view right) {
  const auto first = ids.find(left);
  const auto second = ids.find(right);
  const auto result = ids.find(absl::StrCat(left, right));
  if (first == ids.end() || second == ids.end() || result == ids.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", left, " ", right, "' joins or makes what is not in the vocabulary"));
  }
  return Merge{first->second, second->second, result->second};
}

absl::StatusOr<Merge> MergeOf(const TokenIds& ids, absl::string_view pair) {
  const size_t blank = pair.find(' ', 1);
  if (pair.empty() || blank == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("'", pair, "' is not a pair"));
  }
  return MergeOf(ids, pair.substr(0, blank), pair.substr(blank + 1));
}

std::vector<Merge> MergesByScore(const TokenIds& ids, absl::Span<const std::string_view> tokens,
                                 absl::Span<const double> scores, const std::vector<bool>& mergeable) {
  const auto find = [&](std::string_view part) {
    const auto found = ids.find(absl::string_view(part.data(), part.size()));
    return found != ids.end() && mergeable[static_cast<size_t>(found->second)] ? found->second : -1;
  };
  std::vector<Merge> merges;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!mergeable[id] || find(tokens[id]) != static_cast<int32_t>(id)) continue;
    for (size_t cut = 1; cut < tokens[id].size(); ++cut) {
      const int32_t left = find(tokens[id].substr(0, cut));
      const int32_t right = left < 0 ? -1 : find(tokens[id].substr(cut));
      if (right >= 0) merges.push_back({left, right, static_cast<int32_t>(id)});
    }
  }
  const auto characters = [&](int32_t id) {
    const std::string_view token = tokens[static_cast<size_t>(id)];
    return std::count_if(token.begin(), token.end(),
                         [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; });
  };
  std::sort(merges.begin(), merges.end(), [&](const Merge& a, const Merge& b) {
    const double score_a = scores[static_cast<size_t>(a.result)], score_b = scores[static_cast<size_t>(b.result)];
    if (score_a != score_b) return score_a > score_b;
    if (a.left != b.left && characters(a.left) != characters(b.left)) return characters(a.left) > characters(b.left);
    if (a.right != b.right && characters(a.right) != characters(b.right)) {
      return characters(a.right) > characters(b.right);
    }
    return std::tie(a.result, a.left, a.right) < std::tie(b.result, b.left, b.right);
  });
  return merges;
}

}  // namespace runahead
