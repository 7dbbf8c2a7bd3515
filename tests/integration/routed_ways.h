// A router in the test's own process that is told who computes the rest of a prompt behind what is known.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/partition/schedule.h"
#include "scheduler/placement/continuation_choice.h"

namespace runahead::testing {

struct ServingRouter;

// For one thread.
class RoutedWays {
 public:
  // `workers`: role and address of each. The router serves when this is made; workers join meanwhile.
  RoutedWays(const std::vector<std::pair<std::string, std::string>>& workers, const std::string& model,
             const std::string& dtype);
  ~RoutedWays();

  const std::string& address() const;
  int ready_prefill() const;
  int ready_decode() const;
  // From now on. While no request is on its way.
  void Take(KnownWay way, Schedule schedule);

 private:
  std::unique_ptr<ServingRouter> router_;
};

}  // namespace runahead::testing
