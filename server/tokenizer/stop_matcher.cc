#include "server/tokenizer/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace runahead {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    Pattern pattern;
    pattern.text = std::move(stop);
    pattern.border.assign(pattern.text.size(), 0);
    for (size_t i = 1, length = 0; i < pattern.text.size(); ++i) {
      while (length > 0 && pattern.text[i] != pattern.text[length]) length = pattern.border[length - 1];
      if (pattern.text[i] == pattern.text[length]) ++length;
      pattern.border[i] = length;
    }
    patterns_.push_back(std::move(pattern));
  }
}

StopMatcher::Output StopMatcher::Feed(std::string_view delta) {
  if (stopped_) return {"", true};
  size_t hold = 0;  // the longest beginning of a stop string that the text ends with
  for (const char c : delta) {
    held_ += c;
    hold = 0;
    size_t found = 0;
    for (Pattern& pattern : patterns_) {
      while (pattern.matched > 0 && pattern.text[pattern.matched] != c) {
        pattern.matched = pattern.border[pattern.matched - 1];
      }
      if (pattern.text[pattern.matched] == c) ++pattern.matched;
      if (pattern.matched == pattern.text.size()) found = std::max(found, pattern.matched);
      hold = std::max(hold, pattern.matched);
    }
    if (found == 0) continue;
    stopped_ = true;
    held_.resize(held_.size() - found);
    return {std::exchange(held_, {}), true};
  }
  if (delta.empty()) return {};
  Output output;
  output.text = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return output;
}

std::string StopMatcher::Finish() {
  return std::exchange(held_, {});
}

}  // namespace runahead
