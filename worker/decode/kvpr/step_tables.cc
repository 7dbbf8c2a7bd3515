#include "worker/decode/kvpr/step_tables.h"

#include <algorithm>

#include "worker/kv/block_pool.h"

namespace runahead {

KvLayout FreshLayout(int64_t rows) {
  KvLayout layout{.page_tokens = 1, .pages = {}, .sequences = {}};
  for (int64_t row = 0; row < rows; ++row) {
    layout.pages.push_back(static_cast<int32_t>(row));
    layout.sequences.push_back({.queries = 1, .length = 1, .first_page = row, .end = 1});
  }
  return layout;
}

KvLayout WindowLayout(const ResidentMemory& memory, const PlannedStep& step) {
  KvLayout layout{.page_tokens = kKvBlockTokens, .pages = {}, .sequences = {}, .by_pieces = true};
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const int64_t length = step.sequences[i].length, begin = step.plan.cuts[i].host_end;
    KvSequence sequence{.queries = step.sequences[i].rows, .length = length};
    if (begin < length) {
      sequence.first_page = static_cast<int64_t>(layout.pages.size());
      sequence.begin = begin;
      sequence.end = length;
      const ResidentPart& resident = step.residents[i];
      for (int64_t block = sequence.begin / kKvBlockTokens; block * kKvBlockTokens < sequence.end; ++block) {
        layout.pages.push_back(memory.KvPage(resident.kv_blocks[block - resident.first_kv]));
      }
    }
    layout.sequences.push_back(sequence);
  }
  return layout;
}

std::vector<RowRun> OwnRowsInWindow(const KvLayout& window) {
  std::vector<RowRun> runs;
  int64_t first = 0;
  for (const KvSequence& of : window.sequences) {
    const int64_t first_new = of.length - of.queries, begin = std::max(of.begin, first_new);
    AddRun(first + begin - first_new, of.end - begin, runs);
    first += of.queries;
  }
  return runs;
}

}  // namespace runahead
