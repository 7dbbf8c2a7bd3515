#include "server/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/unicode.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

uint64_t Key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Bpe::Bpe(absl::Span<const Merge> merges, absl::flat_hash_map<uint32_t, int32_t> characters, const Fallback& fallback)
    : characters_(std::move(characters)), fallback_(fallback) {
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    merges_.insert_or_assign(Key(merge.left, merge.right), Ranked{static_cast<uint32_t>(rank), merge.result});
  }
}

const Bpe::Ranked* Bpe::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(Key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<Bpe::Symbol> Bpe::Begin(std::string_view word) const {
  std::vector<Symbol> symbols;
  bool unknown_last = false;
  const auto add = [&](int32_t id) {
    const int32_t index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1});
  };
  const auto begins = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; };
  const bool by_bytes = characters_.empty();
  symbols.reserve(by_bytes ? word.size() : static_cast<size_t>(std::count_if(word.begin(), word.end(), begins)));
  while (!word.empty()) {
    size_t bytes = 1;
    auto found = characters_.end();
    if (!by_bytes) {
      const Utf8Step step = NextUtf8(word);
      bytes = step.bytes;
      if (step.kind == Utf8Step::Kind::kCharacter) found = characters_.find(FirstCharacter(word));
    }
    const std::string_view piece = word.substr(0, bytes);
    word.remove_prefix(bytes);
    const bool known = found != characters_.end() || fallback_.HasBytes(piece);
    if (found != characters_.end()) {
      add(found->second);
    } else if (known) {
      for (const char byte : piece) add(fallback_.byte_ids[static_cast<unsigned char>(byte)]);
    } else if (fallback_.unknown >= 0 && !(unknown_last && fallback_.fuse_unknown)) {
      add(fallback_.unknown);
    }
    unknown_last = !known;
  }
  if (!symbols.empty()) symbols.back().next = -1;
  return symbols;
}

absl::Status Bpe::Encode(std::string_view word, Steps& steps, std::vector<int32_t>& ids) const {
  std::vector<Symbol> symbols = Begin(word);
  if (symbols.empty()) return absl::OkStatus();

  // Candidates as rank << 32 | index of the left symbol, the least on top: lowest rank first, then leftmost.
  std::vector<uint64_t> heap;
  const auto candidate = [&](int32_t left) {
    if (left < 0 || symbols[left].next < 0) return false;
    const Ranked* merge = Find(symbols[left].id, symbols[symbols[left].next].id);
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
    const Ranked* merge = Find(left.id, right.id);
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
