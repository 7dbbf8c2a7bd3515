// How many tokens an answer will have, by the answers before it. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace runahead {

// For one thread at a time. Requests are classed by the powers of two of their prompt's tokens and of their max_tokens.
// It takes at most 300 kB, and each call looks at 64 answers at most.
class ExpectedOutput {
 public:
  // Where nothing is known: as many, or max_tokens where that is less.
  static constexpr int32_t kUnknown = 1024;
  // A class is judged by once it knows so many answers.
  static constexpr size_t kEnough = 16;

  // Output tokens of a request, from 1 to `max_tokens`: nine of ten of the last 64 answers of its class had no more.
  // Where the class knows less than kEnough, of the last 64 with such a max_tokens, whatever their prompts.
  int32_t Expect(int64_t prompt_tokens, int32_t max_tokens) const;

  // An answer has ended after so many tokens. `whole`: by itself, at a stop or at its max_tokens; else it might have
  // gone on, and says something only where it was longer than expected.
  void Learn(int64_t prompt_tokens, int32_t max_tokens, int32_t output_tokens, bool whole);

 private:
  static constexpr size_t kRecent = 64;

  struct Recent {
    std::array<int32_t, kRecent> tokens = {};
    uint64_t seen = 0;

    void Add(int32_t output_tokens) { tokens[seen++ % kRecent] = output_tokens; }
    bool Enough() const { return seen >= kEnough; }
    int32_t NineOfTen() const;
  };

  std::map<std::pair<int, int>, Recent> by_both_;  // of the prompt, of max_tokens
  std::map<int, Recent> by_most_;                  // of max_tokens
};

}  // namespace runahead
