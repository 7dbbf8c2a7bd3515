// A whole worker: model on a device, links, and the roles with their services.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/options.h"

namespace runahead {

// Owns everything; made and destroyed by main's thread.
class WorkerProcess {
 public:
  // Loads, warms up, and serves: when this returns, health says SERVING. Errors say what to do.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(const WorkerOptions& options);
  ~WorkerProcess();

  // host:port that were really bound.
  const std::string& address() const;
  const std::string& metrics_address() const;

  // Now and then: DATA_LOSS where this worker computes with shared weights that were damaged, as another has found.
  absl::Status CheckWeights() const;

  // Certificates follow their files. Now and then, on main's thread.
  void UpdateTls();

  // Has the router plan nothing new here, waits for what it has planned, prefills and decodes, at most `timeout`, and
  // closes the port.
  void Drain(absl::Duration timeout);

 private:
  struct Parts;
  explicit WorkerProcess(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace runahead
