// Making what has threads of its own, where the system may refuse one.
#pragma once

#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace runahead {

// What `make` returns, a Status or StatusOr; RESOURCE_EXHAUSTED where the system refused it a thread, which
// std::thread says by an exception. What was made by then is destroyed: so a thread is the last member of what has it.
template <typename Make>
auto WithThreads(Make make) -> decltype(make()) {
  try {
    return make();
  } catch (const std::system_error& refused) {
    return absl::ResourceExhaustedError(absl::StrCat("the system gives this process no more threads (", refused.what(),
                                                     "); look at pids.max of its cgroup and at ulimit -u"));
  }
}

}  // namespace runahead
