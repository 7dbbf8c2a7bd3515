// Brings a moving sequence's rows to another decode worker's store, as slices of a hand-off.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/row_form.h"
#include "worker/decode/move.h"
#include "worker/handoff/handoff.h"

namespace runahead {

// Where a sequence goes.
struct MoveTarget {
  PeerId peer = {};
  LeaseId lease;  // of that worker, with LeaseRequest::arriving_tokens
};

// `sender` may be shared by many. Rows of KV are in `form` in the store, as the other worker's takes them. Of each
// layer the first hidden[layer] tokens are left out (empty: none): the other worker does not wait for them.
std::shared_ptr<SequenceCarrier> MakeSliceCarrier(std::shared_ptr<HandoffSender> sender, MoveTarget target,
                                                  RowForm form, int64_t layers, std::vector<int64_t> hidden);

}  // namespace runahead
