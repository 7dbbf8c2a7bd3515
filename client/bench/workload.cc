#include "client/bench/workload.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/bench/seeded_random.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

constexpr uint64_t kPrefixStream = ~uint64_t{0} - 1;  // of the seed's numbers; prompts count from 0

// Short and frequent: with the space before them, a token each in vocabularies of 30,000 tokens and more.
constexpr const char* kBenchWords[] = {
    "time",   "year",  "people", "way",   "day",   "man",   "thing",  "woman", "life", "child", "world",
    "school", "state", "hand",   "part",  "place", "case",  "week",   "work",  "fact", "group", "eye",
    "night",  "point", "home",   "water", "room",  "area",  "money",  "book",  "word", "side",  "kind",
    "head",   "house", "line",   "end",   "law",   "car",   "city",   "name",  "team", "idea",  "body",
    "back",   "face",  "level",  "door",  "art",   "war",   "party",  "air",   "food", "power", "road",
    "tree",   "light", "voice",  "price", "paper", "space", "ground", "form",  "event"};

int32_t Draw(const LengthRange& range, SeededRandom& random) {
  return range.least + static_cast<int32_t>(random.Below(static_cast<uint64_t>(range.most - range.least) + 1));
}

void AddIds(int32_t count, const std::vector<int32_t>& from, SeededRandom& random, std::vector<int32_t>& ids) {
  for (int32_t i = 0; i < count; ++i) ids.push_back(from[random.Below(from.size())]);
}

void AddWords(int32_t count, SeededRandom& random, std::string& text) {
  for (int32_t i = 0; i < count; ++i) {
    if (!text.empty()) text += ' ';
    text += kBenchWords[random.Below(std::size(kBenchWords))];
  }
}

}  // namespace

absl::StatusOr<LengthRange> ParseLengthRange(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(text, absl::MaxSplits('-', 1));
  LengthRange range;
  const bool one = text.find('-') == absl::string_view::npos;
  if (!absl::SimpleAtoi(ends.first, &range.least) || !absl::SimpleAtoi(one ? ends.first : ends.second, &range.most) ||
      range.least < 1 || range.most < range.least || range.most > kMostBenchTokens) {
    return absl::InvalidArgumentError(absl::StrCat("'", Printable(text), "' is no number of tokens, or range of them, ",
                                                   "from 1 to ", kMostBenchTokens, ", as in 300 or 200-800"));
  }
  return range;
}

Workload::Workload(const WorkloadOptions& options, std::vector<int32_t> ids)
    : options_(options), ids_(std::move(ids)) {}

BenchRequest Workload::Make(int64_t number) const {
  SeededRandom prefix(options_.seed, kPrefixStream);
  SeededRandom own(options_.seed, static_cast<uint64_t>(number));
  const int32_t input = Draw(options_.input, own);
  BenchRequest request;
  request.max_tokens = Draw(options_.output, own);
  request.ignore_eos = options_.ignore_eos;
  if (ids_.empty()) {
    AddWords(options_.shared_prefix, prefix, request.prompt);
    AddWords(input, own, request.prompt);
  } else {
    request.ids.reserve(static_cast<size_t>(options_.shared_prefix) + static_cast<size_t>(input));
    AddIds(options_.shared_prefix, ids_, prefix, request.ids);
    AddIds(input, ids_, own, request.ids);
  }
  return request;
}

}  // namespace runahead
