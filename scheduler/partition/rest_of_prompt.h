// The rest of a prompt: the tokens behind those whose KV is there. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"

namespace runahead {

// What the rest takes on the same workers that take on_these_s(tokens) for a whole prompt of so many. Short prompts may
// all take the same: their rest takes its share of that. All of the prompt where nothing is known.
inline double SecondsOfRest(int64_t prompt_tokens, int64_t known_tokens,
                            absl::FunctionRef<double(int64_t tokens)> on_these_s) {
  const double whole_s = on_these_s(prompt_tokens);
  if (known_tokens < 1) return whole_s;
  const double share =
      static_cast<double>(prompt_tokens - known_tokens) / static_cast<double>(std::max<int64_t>(1, prompt_tokens));
  return std::max(whole_s - on_these_s(known_tokens), whole_s * share);
}

// The same on a chain: no less than a whole prompt of as many tokens takes there, for its workers begin one behind the
// other whatever is known.
inline double SecondsOfChainRest(int64_t prompt_tokens, int64_t known_tokens,
                                 absl::FunctionRef<double(int64_t tokens)> on_these_s) {
  const double rest_s = SecondsOfRest(prompt_tokens, known_tokens, on_these_s);
  return known_tokens < 1 ? rest_s : std::max(rest_s, on_these_s(prompt_tokens - known_tokens));
}

// The rest in `width` parts, head first, each above 0 and adding up to 1, that take one worker equally long: later
// tokens attend over more. on_one_s(t) is what the first t tokens take there; where it does not rise all the way, in
// even parts. 0 <= known < prompt, width >= 1.
inline std::vector<double> FractionsOfRest(int64_t prompt_tokens, int64_t known_tokens, int width,
                                           absl::FunctionRef<double(int64_t tokens)> on_one_s) {
  const auto rest = static_cast<double>(prompt_tokens - known_tokens);
  const double from_s = known_tokens > 0 ? on_one_s(known_tokens) : 0;
  const double rest_s = on_one_s(prompt_tokens) - from_s;
  std::vector<double> fractions;
  int64_t begin = known_tokens;
  for (int part = 1; part < width && rest_s > 0; ++part) {
    const double until_s = from_s + rest_s * part / width;
    int64_t end = begin, behind = prompt_tokens;  // the first token by which so much time has passed
    while (end + 1 < behind) {
      const int64_t middle = end + (behind - end) / 2;
      (on_one_s(middle) < until_s ? end : behind) = middle;
    }
    if (behind == begin || behind == prompt_tokens) break;
    fractions.push_back(static_cast<double>(behind - begin) / rest);
    begin = behind;
  }
  if (static_cast<int>(fractions.size()) + 1 < width) return std::vector<double>(width, 1.0 / width);
  fractions.push_back(static_cast<double>(prompt_tokens - begin) / rest);
  return fractions;
}

}  // namespace runahead
