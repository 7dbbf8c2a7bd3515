// What a lease of a KvStore is asked for.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/kv/lease_table.h"

namespace runahead {

// The first `tokens` tokens of a living lease, whose prompt begins as the new one's does.
struct SharedPrefix {
  LeaseId lease;
  int64_t tokens = 0;
};

// What a lease is asked for.
struct LeaseRequest {
  int64_t prompt_tokens = 0;  // at least 1
  int64_t total_tokens = 0;   // prompt and output; no fewer than the prompt's
  // Where it has tokens: the whole blocks of them that have arrived in all layers, and that no write under way touches,
  // are both leases' own: as many tokens as SizeOf says then. They have arrived for the new lease too, nobody writes
  // them again through either lease, and they take no memory more. Either lease may end first. Nothing is shared with a
  // lease that has KV from later on only, nor rows of which a window hid that from it which the new lease's does not.
  SharedPrefix share = {};
  // X of the prompt is to arrive, too; what is shared has it, and the output has room for its own. With rest_handed
  // only where what is known has it, as Size says then.
  bool with_x = false;
  // Of tokens [0, kv_from) of the prompt X is to arrive instead of KV; 0 without X. Their KV may come all the same,
  // from a worker that knows nothing of it: it is taken, and nobody reads it.
  int64_t kv_from = 0;
  // The first tokens of the prompt that are handed off, fewer than all; what is shared counts as handed off. The decode
  // engine computes the others, and the lease is complete without them. It goes neither with X nor with shared rows of
  // layers with windows, of which the lease may need more than it shares. Absent: all are handed off.
  std::optional<int64_t> handed_tokens = {};
  // The sequence runs elsewhere, and KV of its first tokens comes from there: of at most so many, prompt and output,
  // from prompt_tokens to what is expected. The lease has memory for these and kFirstPortion tokens more from the
  // beginning, as far as so many are expected, and EndArrival says how many have come. It goes neither with X nor with
  // handed_tokens nor with sharing. Absent: KV of the prompt comes, from where it is computed.
  std::optional<int64_t> arriving_tokens = {};
  // Prompt and output that is expected, from prompt_tokens to total_tokens: the lease begins with memory for the prompt
  // and kFirstPortion tokens more, if so many are expected, and grows (Sequence::Grow). What is expected beyond that is
  // promised to it. Absent: it has memory for all of total_tokens from the beginning.
  std::optional<int64_t> expected_tokens = {};
  bool parked_first = false;  // of low priority: who parks looks at it, the store does not
  // The lease begins with KV of the prompt's first tokens that sequences left here which ended (Sequence::Keep): of as
  // many as there are, at least so many, from 1 to prompt_tokens - 1. Their whole blocks are shared, a begun one is to
  // be copied (Sequence::Copies), and the lease is complete without the other tokens, as with handed_tokens. It goes
  // with none of these that say what arrives or is shared, but for X with rest_handed. Absent: it begins with nothing.
  std::optional<int64_t> least_known_tokens = {};
  // With least_known_tokens: the lease begins with exactly so many, and the others are handed off, by a chain that gets
  // the first ones from here (LendKnown). It is complete once they have come.
  bool rest_handed = false;
  absl::Span<const int32_t> prompt_ids = {};  // with it: all of the prompt's; read by Reserve alone
  absl::string_view salt = {};  // what is kept under one is known only to leases of the same; copied by Reserve
  bool not_kept = false;        // Keep keeps nothing of it
};

// Tokens behind the prompt for which a lease that grows has memory from the beginning, at most: a quarter of a block,
// so that few have to grow within their first steps.
inline constexpr int64_t kFirstPortion = 64;

}  // namespace runahead
