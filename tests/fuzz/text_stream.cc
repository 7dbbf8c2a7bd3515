// Bytes as they are cut: characters, and stop strings in them, against what plain searching finds.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>

#include "server/tokenizer/stop_matcher.h"
#include "server/tokenizer/utf8.h"
#include "tests/fuzz/fuzz.h"

namespace runahead {
namespace {

// Up to the stop string that is complete first, the longest of those that end there.
std::string CutAtStop(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

}  // namespace

void Fuzz(std::string_view input) {
  FuzzedDataProvider from(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  std::vector<std::string> stops(from.ConsumeIntegralInRange<size_t>(0, 4));
  for (std::string& stop : stops) stop = ReplaceInvalidUtf8(from.ConsumeRandomLengthString(12));
  std::string bytes, text, passed;
  Utf8Stream characters;
  StopMatcher matcher(stops);
  const auto take = [&](const std::string& delta) {
    RUNAHEAD_CHECK(ReplaceInvalidUtf8(delta) == delta);  // no character is split
    text += delta;
    const StopMatcher::Output output = matcher.Feed(delta);
    RUNAHEAD_CHECK(ReplaceInvalidUtf8(output.text) == output.text);
    passed += output.text;
  };
  while (from.remaining_bytes() > 0) {
    const std::string piece = from.ConsumeBytesAsString(from.ConsumeIntegralInRange<size_t>(1, 9));
    bytes += piece;
    take(characters.Feed(piece));
  }
  take(characters.Finish());
  passed += matcher.Finish();
  RUNAHEAD_CHECK(text == ReplaceInvalidUtf8(bytes));
  RUNAHEAD_CHECK(passed == CutAtStop(text, stops));
}

}  // namespace runahead
