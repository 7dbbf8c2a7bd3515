// Stop strings in a stream of text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace runahead {

// Passes text on until a stop string is complete, and holds back what may be the beginning of one. However the text is
// cut into deltas, the same comes out: the text up to the stop string that is complete first (the longest, where
// several end together), without it. Deltas and stop strings are valid UTF-8, and then no character is split. For one
// thread at a time.
class StopMatcher {
 public:
  // Empty stop strings are ignored.
  explicit StopMatcher(std::vector<std::string> stops);

  struct Output {
    std::string text;      // to pass on now
    bool stopped = false;  // a stop string was found: this is the end, later deltas give nothing
  };

  // Takes time in proportion to the delta and the number of stop strings.
  Output Feed(std::string_view delta);

  // The text ends here: gives what was held back.
  std::string Finish();

 private:
  // One stop string and how much of it the text ends with (Knuth, Morris, Pratt).
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // border[n]: the longest proper beginning of text[0:n+1) that also ends it
    size_t matched = 0;
  };

  std::vector<Pattern> patterns_;
  std::string held_;  // not passed on yet: the longest end of the text that may begin a stop string
  bool stopped_ = false;
};

}  // namespace runahead
