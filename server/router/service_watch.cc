#include "server/router/service_watch.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/thread_name.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

// How often workers that drain are looked at.
constexpr absl::Duration kDrainPeriod = absl::Milliseconds(500);

}  // namespace

std::vector<WorkerSpec> SeatsFor(absl::Span<const WorkerSpec> list) {
  std::vector<WorkerSpec> seats;
  for (const WorkerSpec& entry : list) seats.insert(seats.end(), entry.service.empty() ? 1 : kSeatsOfService, entry);
  return seats;
}

ServiceWatch::ServiceWatch(absl::Span<const WorkerSpec> list, LookUp look_up, Seats& seats, absl::Duration period,
                           Clock& clock)
    : look_up_(std::move(look_up)), seats_(seats), period_(period), clock_(clock) {
  std::map<std::pair<std::string, std::string>, std::vector<int>> by_service;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].service.empty()) by_service[{list[i].role, list[i].service}].push_back(static_cast<int>(i));
  }
  for (const auto& [service, numbers] : by_service) {
    services_.push_back({service.first, service.second, Membership(numbers), {}});
  }
  if (!services_.empty()) thread_ = std::thread([this] { Run(); });
}

ServiceWatch::~ServiceWatch() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    stop_changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ServiceWatch::Run() {
  NameThread("names");
  absl::Time look_at = clock_.Now();
  while (true) {
    if (clock_.Now() >= look_at) {
      for (Service& service : services_) Look(service);
      look_at = clock_.Now() + period_;
    }
    for (Service& service : services_) VacateDrained(service);
    const absl::Time next = RetiredAny() ? std::min(look_at, clock_.Now() + kDrainPeriod) : look_at;
    MutexLock lock(mu_);
    while (!stop_ && clock_.Now() < next) clock_.WaitUntil(mu_, stop_changed_, next);
    if (stop_) return;
  }
}

void ServiceWatch::Look(Service& service) {
  const absl::StatusOr<std::set<std::string>> named = look_up_(service.name);
  if (!named.ok()) return Tell(service, absl::StrCat(named.status().message(), "; the workers stay as they are"));
  const Membership::Changes changes = service.members.Named(*named);
  std::string matter;
  for (int seat : changes.occupied) {
    const absl::Status occupied = seats_.Occupy(seat, service.members.address(seat));
    if (occupied.ok()) continue;
    matter = absl::StrCat(service.members.address(seat), " waits: ", occupied.message());
    service.members.Vacate(seat);  // it comes again with the next look-up
  }
  for (int seat : changes.kept) seats_.Keep(seat);
  if (named->empty()) matter = absl::StrCat(service.name, ": no worker is named; the workers stay as they are");
  if (!changes.left_out.empty()) {
    matter = absl::StrCat(service.name, ": more than ", kSeatsOfService,
                          " workers; left out: ", absl::StrJoin(changes.left_out, ", "));
  }
  Tell(service, matter);
}

void ServiceWatch::VacateDrained(Service& service) {
  for (int seat : service.members.retired()) {
    if (!seats_.Retire(seat)) continue;
    seats_.Vacate(seat);
    service.members.Vacate(seat);
  }
}

void ServiceWatch::Tell(Service& service, const std::string& matter) {
  if (!matter.empty() && matter != service.told) LogWarning("membership", service.role, ": ", matter);
  if (matter.empty() && !service.told.empty()) LogInfo("membership", service.role, ": ", service.name, " is answered");
  service.told = matter;
}

bool ServiceWatch::RetiredAny() const {
  return std::any_of(services_.begin(), services_.end(),
                     [](const Service& service) { return !service.members.retired().empty(); });
}

}  // namespace runahead
