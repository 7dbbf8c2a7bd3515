#include "worker/decode/kvpr/residency.h"

#include <algorithm>

#include "kernels/base/kv_table.h"
#include "kernels/base/status_macros.h"
#include "worker/kv/block_pool.h"

namespace runahead {
namespace {

// Residency is in blocks, so tiers are planned for the blocks that sequences have, and anew when one needs another.
int64_t PlannedLength(int64_t length) {
  return KvBlocksFor(length) * kKvBlockTokens;
}

}  // namespace

Residency::~Residency() {
  for (auto& [sequence, held] : held_) {
    DropKvBefore(held.first_kv + static_cast<int64_t>(held.kv_blocks.size()), held);
    DropXFrom(0, held);
  }
}

bool Residency::NeedsPlan(absl::Span<const ResidentKey> sequences) const {
  if (sequences.size() != planned_.size()) return true;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].sequence != planned_[i]) return true;
    const auto held = held_.find(sequences[i].sequence);
    if (held == held_.end() || sequences[i].length > held->second.planned_length) return true;
  }
  return false;
}

absl::Status Residency::Plan(absl::Span<const ResidentKey> sequences, const LaneCosts& costs) {
  std::vector<LaneShape> shapes;
  for (const ResidentKey& key : sequences) {
    const int64_t length = PlannedLength(key.length);
    shapes.push_back(
        {.length = length, .x_stored = key.x_stored, .l_min = key.kv_from, .piece_tokens = PieceTokens(length)});
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const TierPlan plan, PlanTiers(SplitObjective::kStep, costs, budget_, shapes));
  const std::vector<LaneShape> tiered = WithTiers(shapes, plan.window_tokens, plan.x_tokens, budget_.block_tokens);
  planned_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    Held& held = held_[sequences[i].sequence];
    held.kv_target = tiered[i].WindowBegin();
    held.x_target = tiered[i].x_resident;
    held.planned_length = tiered[i].length;
    planned_.push_back(sequences[i].sequence);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ResidentPart>> Residency::Prepare(absl::Span<const ResidentKey> sequences,
                                                             const LaneCosts& costs) {
  std::vector<ResidentPart> parts(sequences.size());
  if (memory_.bytes() == 0) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      parts[i].resident_from = sequences[i].length;
      parts[i].l_min = sequences[i].kv_from;
    }
    return parts;
  }
  if (NeedsPlan(sequences)) RUNAHEAD_RETURN_IF_ERROR(Plan(sequences, costs));
  // First all give up what they have too much of, so that others find room.
  for (const ResidentKey& key : sequences) {
    Held& held = held_.at(key.sequence);
    DropKvBefore(held.kv_target / kKvBlockTokens, held);
    DropXFrom(held.x_target / kKvBlockTokens, held);
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    const ResidentKey& key = sequences[i];
    Held& held = held_.at(key.sequence);
    FitWindow(key, held);
    FitX(key, held);
    parts[i] = {.resident_from = held.valid_to >= key.first_new() ? held.valid_from : key.length,
                .x_resident = std::min(held.x_valid, key.x_stored),
                .l_min = key.kv_from,
                .first_kv = held.first_kv,
                .kv_blocks = held.kv_blocks,
                .x_blocks = held.x_blocks};
    const auto x_held = static_cast<int64_t>(held.x_blocks.size()) * kKvBlockTokens;
    if (held.x_valid < x_held) parts[i].l_min = std::max(key.kv_from, std::min(x_held, key.x_stored));
    if (held.kv_blocks.empty()) parts[i].resident_from = key.length;
  }
  return parts;
}

// Blocks from the newest backwards to the target, as far as there is room.
void Residency::FitWindow(const ResidentKey& key, Held& held) {
  const int64_t end = KvBlocksFor(key.length), target = held.kv_target / kKvBlockTokens;
  const auto held_end = [&] { return held.first_kv + static_cast<int64_t>(held.kv_blocks.size()); };
  const bool continues = held.valid_to >= key.first_new() && held_end() >= KvBlocksFor(held.valid_to);
  if (!held.kv_blocks.empty() && !continues) DropKvBefore(held_end(), held);
  if (held.kv_blocks.empty()) {
    held.first_kv = end;
    held.valid_from = held.valid_to = key.length;  // nothing yet
  }
  while (held_end() < end) {
    std::optional<int32_t> block = memory_.TakeKv();
    if (!block.has_value() && !held.kv_blocks.empty()) {
      DropKvBefore(held.first_kv + 1, held);  // the oldest for the newest
      block = memory_.TakeKv();
    }
    if (!block.has_value()) return DropKvBefore(held_end(), held);
    if (held.kv_blocks.empty()) held.first_kv = end - 1, held.valid_from = held.valid_to = key.length;
    held.kv_blocks.push_back(*block);
  }
  while (held.first_kv > target) {
    const std::optional<int32_t> block = memory_.TakeKv();
    if (!block.has_value()) return;
    held.kv_blocks.insert(held.kv_blocks.begin(), *block);
    --held.first_kv;
  }
}

void Residency::FitX(const ResidentKey& key, Held& held) {
  const int64_t target = std::min(held.x_target, key.x_stored) / kKvBlockTokens;
  while (static_cast<int64_t>(held.x_blocks.size()) < target) {
    const std::optional<int32_t> block = memory_.TakeX();
    if (!block.has_value()) return;
    held.x_blocks.push_back(*block);
  }
}

void Residency::Commit(const ResidentKey& key, const ResidentPart& part, int64_t recomputed) {
  const auto found = held_.find(key.sequence);
  if (found == held_.end()) return;
  Held& held = found->second;
  if (!part.kv_blocks.empty()) {
    held.valid_from = std::max(part.first_kv, held.first_kv) * kKvBlockTokens;
    held.valid_to = key.length;
  }
  const auto x_held = static_cast<int64_t>(std::min(part.x_blocks.size(), held.x_blocks.size())) * kKvBlockTokens;
  held.x_valid = std::min(std::max(held.x_valid, std::max(part.x_resident, recomputed)), x_held);
}

void Residency::Distrust(const void* sequence) {
  const auto found = held_.find(sequence);
  if (found == held_.end()) return;
  found->second.valid_from = found->second.valid_to = found->second.x_valid = 0;
  DropKvBefore(found->second.first_kv + static_cast<int64_t>(found->second.kv_blocks.size()), found->second);
}

void Residency::Leave(const void* sequence) {
  const auto found = held_.find(sequence);
  if (found == held_.end()) return;
  Distrust(sequence);
  DropXFrom(0, found->second);
  held_.erase(found);
  planned_.clear();
}

void Residency::DropKvBefore(int64_t block, Held& held) {
  const int64_t count = std::clamp<int64_t>(block - held.first_kv, 0, static_cast<int64_t>(held.kv_blocks.size()));
  for (int64_t i = 0; i < count; ++i) memory_.ReturnKv(held.kv_blocks[i]);
  held.kv_blocks.erase(held.kv_blocks.begin(), held.kv_blocks.begin() + count);
  held.first_kv += count;
  held.valid_from = std::max(held.valid_from, held.first_kv * kKvBlockTokens);
}

void Residency::DropXFrom(int64_t block, Held& held) {
  while (static_cast<int64_t>(held.x_blocks.size()) > block) {
    memory_.ReturnX(held.x_blocks.back());
    held.x_blocks.pop_back();
  }
  held.x_valid = std::min(held.x_valid, static_cast<int64_t>(held.x_blocks.size()) * kKvBlockTokens);
}

}  // namespace runahead
