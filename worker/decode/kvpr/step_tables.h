// Where the rows of a KVPR step lie that pass through no chunk: those that it makes, and those that are resident.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/kv_table.h"
#include "worker/decode/kvpr/planned_step.h"
#include "worker/kv/resident_memory.h"

namespace runahead {

// `rows` new rows, one after the other, as if each were of a sequence of its own: nothing attends over the layout.
KvLayout FreshLayout(int64_t rows);
// What of the step's sequences is attended where it is resident.
KvLayout WindowLayout(const ResidentMemory& memory, const PlannedStep& step);
// The new rows that are in their sequences' windows.
std::vector<RowRun> OwnRowsInWindow(const KvLayout& window);

}  // namespace runahead
