#include "server/tokenizer/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace runahead {

StopMatcher::StopMatcher(std::vector<std::string> stops, std::vector<std::string> with_names) {
  for (std::string& stop : stops) Add(std::move(stop), /*with_names=*/false);
  for (std::string& stop : with_names) {
    longest_with_names_ = std::max(longest_with_names_, stop.size());
    Add(std::move(stop), /*with_names=*/true);
  }
}

void StopMatcher::Add(std::string text, bool with_names) {
  if (text.empty()) return;
  Pattern pattern;
  pattern.text = std::move(text);
  pattern.with_names = with_names;
  pattern.border.assign(pattern.text.size(), 0);
  for (size_t i = 1, length = 0; i < pattern.text.size(); ++i) {
    while (length > 0 && pattern.text[i] != pattern.text[length]) length = pattern.border[length - 1];
    if (pattern.text[i] == pattern.text[length]) ++length;
    pattern.border[i] = length;
  }
  patterns_.push_back(std::move(pattern));
}

void StopMatcher::Pattern::Advance(char c) {
  while (matched > 0 && text[matched] != c) matched = border[matched - 1];
  if (text[matched] == c) ++matched;
}

size_t StopMatcher::ShownOf(const Pattern& pattern) const {
  if (!pattern.with_names) return pattern.matched;
  return pattern.matched - static_cast<size_t>(hidden_.back() - hidden_[hidden_.size() - 1 - pattern.matched]);
}

StopMatcher::Output StopMatcher::Feed(std::string_view delta, bool hidden) {
  if (stopped_) return {"", true};
  if (delta.empty()) return {};
  size_t hold = 0;  // the longest beginning of a stop string that the text ends with
  for (const char c : delta) {
    if (!hidden) held_ += c;
    hidden_.push_back(hidden_.back() + (hidden ? 1 : 0));
    if (hidden_.size() > longest_with_names_ + 1) hidden_.pop_front();
    hold = 0;
    size_t found = 0;
    for (Pattern& pattern : patterns_) {
      if (!hidden || pattern.with_names) pattern.Advance(c);
      if (!looking_ && pattern.matched == pattern.text.size()) pattern.FallBack();
      const size_t shown = ShownOf(pattern);
      hold = std::max(hold, shown);
      if (pattern.matched < pattern.text.size()) continue;
      stopped_ = true;
      found = std::max(found, shown);
    }
    if (!stopped_) continue;
    held_.resize(held_.size() - found);
    return {std::exchange(held_, {}), true};
  }
  Output output;
  output.text = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return output;
}

std::string StopMatcher::Finish() {
  return std::exchange(held_, {});
}

}  // namespace runahead
