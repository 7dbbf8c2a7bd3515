// Keeps the places of the worker list in step with what a name service says.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"
#include "server/router/fleet.h"
#include "server/router/membership.h"
#include "server/router/places.h"

namespace runahead {

// How many workers one service can have at a time.
inline constexpr int kPlacesOfService = 128;

// The list with kPlacesOfService vacant places instead of each service.
std::vector<WorkerSpec> PlacesFor(absl::Span<const WorkerSpec> list);

class ServiceWatch {
 public:
  // A service's workers, each host:port. May block.
  using LookUp = std::function<absl::StatusOr<std::set<std::string>>(const std::string& service)>;

  // Looks up the services of `list` (PlacesFor's) now and every `period`, on a thread of its own, until it is
  // destroyed. A look-up that fails or is empty changes nothing. `places` and `clock` outlive it.
  ServiceWatch(absl::Span<const WorkerSpec> list, LookUp look_up, Places& places, absl::Duration period, Clock& clock);
  ~ServiceWatch();
  ServiceWatch(const ServiceWatch&) = delete;
  ServiceWatch& operator=(const ServiceWatch&) = delete;

 private:
  struct Service {
    std::string role;
    std::string name;
    Membership members;
    std::string told;  // for the log: what is the matter was said once
  };
  void Run() RUNAHEAD_EXCLUDES(mu_);
  void Look(Service& service);
  void VacateDrained(Service& service);
  void Tell(Service& service, const std::string& matter);
  bool RetiredAny() const;

  const LookUp look_up_;
  Places& places_;
  const absl::Duration period_;
  Clock& clock_;
  std::vector<Service> services_;  // of the thread
  Mutex mu_;
  CondVar stop_changed_;
  bool stop_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
