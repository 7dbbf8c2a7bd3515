// The rest of a prompt: the tokens behind those whose KV is there. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

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

// The rest in parts, head first, each above 0 and adding up to 1, that take one worker these shares of the time that
// the rest takes it: later tokens attend over more. on_one_s(t) is what the first t tokens take there, 0 for none;
// where it does not rise, or there are fewer tokens than shares, they are shares of the tokens. `shares`: at least one,
// none below 0, adding up to 1. 0 <= known < prompt.
inline std::vector<double> FractionsOfRest(int64_t prompt_tokens, int64_t known_tokens, absl::Span<const double> shares,
                                           absl::FunctionRef<double(int64_t tokens)> on_one_s) {
  std::vector<double> of_tokens(shares.begin(), shares.end());
  const double from_s = on_one_s(known_tokens), rest_s = on_one_s(prompt_tokens) - from_s;
  const auto width = static_cast<int64_t>(shares.size()), rest = prompt_tokens - known_tokens;
  if (!(rest_s > 0) || rest < width) return of_tokens;
  std::vector<double> fractions;
  int64_t begin = known_tokens;
  double until_s = from_s;
  for (int64_t part = 0; part + 1 < width; ++part) {
    until_s += rest_s * shares[part];
    int64_t end = begin, behind = prompt_tokens - (width - 1 - part);  // the first token by which so much has passed
    while (end + 1 < behind) {
      const int64_t middle = end + (behind - end) / 2;
      (on_one_s(middle) < until_s ? end : behind) = middle;
    }
    fractions.push_back(static_cast<double>(behind - begin) / static_cast<double>(rest));
    begin = behind;
  }
  fractions.push_back(static_cast<double>(prompt_tokens - begin) / static_cast<double>(rest));
  return fractions;
}

}  // namespace runahead
