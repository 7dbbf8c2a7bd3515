// A running router: everything that main puts together.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/router/router_options.h"

namespace runahead {

class RouterProcess {
 public:
  // Reads the model's file and the table, listens, and begins to look for workers. Errors name the file or the option.
  static absl::StatusOr<std::unique_ptr<RouterProcess>> Start(const RouterOptions& options);
  ~RouterProcess();

  const std::string& address() const;          // host:port of the public service
  const std::string& metrics_address() const;  // host:port of /metrics

  // Health says SERVING while a prefill and a decode worker are ready. Called again and again by main's thread.
  void UpdateHealth();

  // Workers that were ejected come back in time. Called again and again by main's thread.
  void UpdateEjections();

  // The partition table follows its file. Called again and again by main's thread.
  void UpdateTable();

  // The API keys follow their file. Called again and again by main's thread.
  void UpdateKeys();

  // Memory that was freed is given back, and what is taken is told. Called again and again by main's thread.
  void UpdateMemory();

  // Certificates follow their files. Called again and again by main's thread.
  void UpdateTls();

  // Ends: no new requests; those that run may go on for `timeout`.
  void Drain(absl::Duration timeout);

 private:
  struct Parts;
  explicit RouterProcess(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace runahead
