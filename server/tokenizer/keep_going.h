// How work on a long text is told to end before it is done.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace runahead {

// Asked now and then during work that may take seconds, on the thread that works: what is not OK ends it.
using KeepGoing = absl::FunctionRef<absl::Status()>;

inline absl::Status Always() {
  return absl::OkStatus();
}

// Asks once in some thousand steps: a step takes about as long as a look into a hash table.
class Steps {
 public:
  explicit Steps(KeepGoing keep_going) : keep_going_(keep_going) {}

  absl::Status Next() { return ++steps_ % kStepsBetween == 0 ? keep_going_() : absl::OkStatus(); }

 private:
  static constexpr uint64_t kStepsBetween = 4096;

  const KeepGoing keep_going_;
  uint64_t steps_ = 0;
};

}  // namespace runahead
