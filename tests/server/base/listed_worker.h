// A list entry as a configuration may hold, for tests of configurations.
#pragma once

#include <string>

#include "server/base/config.h"

namespace runahead::testing {

struct ListedWorker {
  std::string role;
  std::string address;
};

inline void DeclareWorker(ConfigSchema& schema, ListedWorker& worker) {
  schema.String("role", &worker.role, {.one_of = {"prefill", "decode"}, .required = true}, "What it does");
  schema.Address("address", &worker.address, {.required = true}, "Where it listens");
}

}  // namespace runahead::testing
