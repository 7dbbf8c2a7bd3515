// Keeps the seats of the worker list in step with what a name service says.
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
#include "server/router/seats.h"

namespace runahead {

// How many workers one service can have at a time.
inline constexpr int kSeatsOfService = 128;

// The list with kSeatsOfService vacant seats instead of each service.
std::vector<WorkerSpec> SeatsFor(absl::Span<const WorkerSpec> list);

class ServiceWatch {
 public:
  // A service's workers, each host:port. May block.
  using LookUp = std::function<absl::StatusOr<std::set<std::string>>(const std::string& service)>;

  // Looks up the services of `list` (SeatsFor's) now and every `period`, on a thread of its own, until it is
  // destroyed. A look-up that fails or is empty changes nothing. `seats` and `clock` outlive it.
  ServiceWatch(absl::Span<const WorkerSpec> list, LookUp look_up, Seats& seats, absl::Duration period, Clock& clock);
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
  Seats& seats_;
  const absl::Duration period_;
  Clock& clock_;
  std::vector<Service> services_;  // of the thread
  Mutex mu_;
  CondVar stop_changed_;
  bool stop_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
