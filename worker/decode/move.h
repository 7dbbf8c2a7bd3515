// How a sequence leaves an engine for another worker's while it is decoded.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/kv/store.h"

namespace runahead {

// Brings rows of one sequence to the worker that takes it over.
class SequenceCarrier {
 public:
  using Done = std::function<void(absl::StatusOr<int64_t> bytes)>;
  virtual ~SequenceCarrier() = default;
  // The rows in all layers. `done` runs once, on any thread, when the rows are not read any more: with the bytes that
  // the other worker has taken, once it has all of them. It may run before Send returns. One Send at a time; from the
  // engine's thread, so it does not block.
  virtual void Send(KvStore::Lent rows, Done done) = 0;
  // What is not on its way is not wanted any more: a Send under way is done soon.
  virtual void Cancel() = 0;
};

// What came of a move. OK: the sequence is the other worker's.
struct MoveOutcome {
  absl::Status status;          // else why it goes on here
  int64_t tokens = 0;           // from the first on, those of which the other worker has KV; with OK
  int64_t bytes = 0;            // that it has taken
  absl::Duration took = {};     // since the engine began
  absl::Duration stopped = {};  // of these, in which the sequence stood still
};

}  // namespace runahead
