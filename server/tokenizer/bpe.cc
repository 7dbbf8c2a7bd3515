#include "server/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/byte_alphabet.h"

namespace runahead {
namespace {

uint64_t Key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

// One symbol of a word; symbols form a list from which merged ones drop out.
struct Symbol {
  int32_t id;        // -1: merged away
  int32_t previous;  // index, or -1
  int32_t next;      // index, or -1
};

}  // namespace

absl::StatusOr<BpeMerges> BpeMerges::Build(absl::Span<const std::string_view> tokens,
                                           absl::Span<const std::string_view> merges) {
  absl::flat_hash_map<std::string, int32_t> ids;
  ids.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) ids.emplace(std::string(tokens[id]), static_cast<int32_t>(id));
  const auto find = [&ids](std::string_view token) {
    const auto found = ids.find(std::string(token));
    return found == ids.end() ? -1 : found->second;
  };

  BpeMerges bpe;
  for (int byte = 0; byte < 256; ++byte) bpe.byte_ids_[byte] = find(ByteToAlphabet(static_cast<unsigned char>(byte)));
  bpe.merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string merge(merges[rank]);
    const size_t blank = merge.find(' ', 1);
    if (merge.empty() || blank == std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("merge ", rank, " '", merge, "' is not a pair"));
    }
    const int32_t left = find(merge.substr(0, blank));
    const int32_t right = find(merge.substr(blank + 1));
    const int32_t result = find(merge.substr(0, blank) + merge.substr(blank + 1));
    if (left < 0 || right < 0 || result < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", rank, " '", merge, "' joins or makes what is not in the vocabulary"));
    }
    bpe.merges_.insert_or_assign(Key(left, right), Merge{static_cast<uint32_t>(rank), result});
  }
  return bpe;
}

const BpeMerges::Merge* BpeMerges::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(Key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

absl::Status BpeMerges::Encode(std::string_view word, Steps& steps, std::vector<int32_t>& ids) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    const int32_t index = static_cast<int32_t>(symbols.size());
    if (id >= 0) symbols.push_back({id, index - 1, index + 1});
  }
  if (symbols.empty()) return absl::OkStatus();
  symbols.back().next = -1;

  // Candidates as rank << 32 | index of the left symbol, the least on top: lowest rank first, then leftmost.
  std::vector<uint64_t> heap;
  const auto candidate = [&](int32_t left) {
    if (left < 0 || symbols[left].next < 0) return false;
    const Merge* merge = Find(symbols[left].id, symbols[symbols[left].next].id);
    if (merge == nullptr) return false;
    heap.push_back(static_cast<uint64_t>(merge->rank) << 32 | static_cast<uint32_t>(left));
    return true;
  };
  const auto push = [&](int32_t left) {
    if (candidate(left)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  // Symbols merge at most n - 1 times, and each time one candidate goes and two come.
  heap.reserve(2 * symbols.size());
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    RUNAHEAD_RETURN_IF_ERROR(steps.Next());
    candidate(static_cast<int32_t>(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  while (!heap.empty()) {
    RUNAHEAD_RETURN_IF_ERROR(steps.Next());
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint32_t rank = static_cast<uint32_t>(heap.back() >> 32);
    const int32_t index = static_cast<int32_t>(heap.back() & 0xffffffff);
    heap.pop_back();
    Symbol& left = symbols[index];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    const Merge* merge = Find(left.id, right.id);
    // A candidate is stale when one of its symbols has become another since; a pair has one rank, so ranks tell.
    if (merge == nullptr || merge->rank != rank) continue;
    left.id = merge->result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = index;
    push(left.previous);
    push(index);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
  return absl::OkStatus();
}

}  // namespace runahead
