#include "worker/decode/kvpr/step_tables.h"

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
  KvLayout layout{.page_tokens = kKvBlockTokens, .pages = {}, .sequences = {}};
  for (size_t i = 0; i < step.lengths.size(); ++i) {
    const int64_t length = step.lengths[i], begin = step.plan.cuts[i].host_end;
    KvSequence sequence{.queries = 1, .length = length};
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

std::vector<SequenceRun> OwnRowsInWindow(const KvLayout& window) {
  std::vector<SequenceRun> runs;
  for (size_t i = 0; i < window.sequences.size(); ++i) {
    if (window.sequences[i].end == 0) continue;
    const auto at = static_cast<int64_t>(i);
    if (!runs.empty() && runs.back().first + runs.back().count == at) {
      ++runs.back().count;
    } else {
      runs.push_back({at, 1});
    }
  }
  return runs;
}

}  // namespace runahead
