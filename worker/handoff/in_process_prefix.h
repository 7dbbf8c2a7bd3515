// A prefix inside one process (--role both): rows of the own store, copied.
#pragma once

#include <memory>

#include "server/base/progress_meter.h"
#include "worker/handoff/prefix_loader.h"
#include "worker/kv/store.h"
#include "worker/link/staging_lane.h"

namespace runahead {

// Loads from `store`, which keeps (KvStore::keeps), whichever peer it is asked of. Copies by `lane`'s stream, where the
// rows go to memory of its device; null: on a thread of its own, which `progress`, where given, is of. Rows that the
// store quantises come opened (OpenedRows). Store and lane outlive it. Destroying it waits for the copies.
std::unique_ptr<PrefixLoader> MakeInProcessPrefixLoader(KvStore& store, std::shared_ptr<StagingLane> lane = nullptr,
                                                        std::shared_ptr<ProgressMeter> progress = nullptr);

}  // namespace runahead
