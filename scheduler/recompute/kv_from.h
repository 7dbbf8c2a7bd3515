// How much of a prompt a decode worker takes as X instead of KV. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "scheduler/recompute/split_solver.h"

namespace runahead {

// From where on KV of a prompt of `prompt_tokens` tokens, at least 1, is needed where X of all of it comes: what lies
// before is recomputed in the sequence's first step (LaneShape::l_min), so it has to be what that would recompute
// anyway. A multiple of the tile; 0 where X is no smaller than KV as it is stored.
//
// `fixed_l`, where every step recomputes so much: that. Else three quarters of what the solver would recompute of the
// prompt alone, so that it keeps room to move as costs do; in company, where the projections are those of all, it is
// more. 0 for short prompts. `costs` passed CheckLaneCosts.
int64_t KvFrom(const LaneCosts& costs, std::optional<int64_t> fixed_l, int64_t prompt_tokens);

}  // namespace runahead
