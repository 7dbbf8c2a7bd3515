// Made prompts. Pure: what a request is follows from the seed and its number.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/bench/bench_request.h"

namespace runahead {

// Tokens; each number of them is as likely as another.
struct LengthRange {
  int32_t least = 1;
  int32_t most = 1;  // included
};

// "300" or "200-800". INVALID_ARGUMENT, without the flag's name, unless 1 <= least <= most <= kMostBenchTokens.
inline constexpr int32_t kMostBenchTokens = 10'000'000;
absl::StatusOr<LengthRange> ParseLengthRange(absl::string_view text);

struct WorkloadOptions {
  LengthRange input;
  LengthRange output;
  int32_t shared_prefix = 0;  // tokens that all prompts begin with, in front of `input`
  uint64_t seed = 0;
  bool ignore_eos = true;
};

// Prompts are random behind their shared beginning, so no two begin alike: what a server keeps of one is of no use for
// another. Thread-compatible.
class Workload {
 public:
  // Prompts of ids out of `ids`; of words where it is empty, most of which are a token each for most tokenizers.
  Workload(const WorkloadOptions& options, std::vector<int32_t> ids);

  // The request of this number, from 0. Its input is ids or a text.
  BenchRequest Make(int64_t number) const;

 private:
  const WorkloadOptions options_;
  const std::vector<int32_t> ids_;
};

}  // namespace runahead
