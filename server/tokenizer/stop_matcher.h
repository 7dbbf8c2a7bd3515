// Stop strings in a stream of text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
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
  // Those `with_names` are found in the text with the names of hidden tokens in it, `stops` in the text alone. Empty
  // ones are ignored.
  explicit StopMatcher(std::vector<std::string> stops, std::vector<std::string> with_names = {});

  struct Output {
    std::string text;      // to pass on now
    bool stopped = false;  // a stop string was found: this is the end, later deltas give nothing
  };

  // Takes time in proportion to the delta and the number of stop strings.
  Output Feed(std::string_view delta) { return Feed(delta, /*hidden=*/false); }
  // The same for the name of a token that is no text: none of it is passed on.
  Output FeedHidden(std::string_view name) { return Feed(name, /*hidden=*/true); }

  // Whether a stop string that is complete from now on is the end. Else it is text like any other. At first it is.
  void SetLooking(bool looking) { looking_ = looking; }

  // The text ends here: gives what was held back.
  std::string Finish();

 private:
  // One stop string and how much of it the text ends with (Knuth, Morris, Pratt).
  struct Pattern {
    std::string text;
    bool with_names = false;
    std::vector<size_t> border;  // border[n]: the longest proper beginning of text[0:n+1) that also ends it
    size_t matched = 0;

    void Advance(char c);
    // Of a match that does not count: goes on with what of it may begin another one.
    void FallBack() { matched = border[matched - 1]; }
  };

  void Add(std::string text, bool with_names);
  Output Feed(std::string_view delta, bool hidden);
  // Bytes of what it has matched that are not hidden.
  size_t ShownOf(const Pattern& pattern) const;

  std::vector<Pattern> patterns_;
  size_t longest_with_names_ = 0;
  // How many of all bytes so far were hidden: now, and before each of the last ones that a pattern with names may have
  // matched.
  std::deque<uint64_t> hidden_ = {0};
  std::string held_;  // not passed on yet: the longest end of the text that may begin a stop string
  bool looking_ = true;
  bool stopped_ = false;
};

}  // namespace runahead
