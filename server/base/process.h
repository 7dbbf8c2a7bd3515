// What every process of ours does around its work: options they share, the word that it serves, the end of its parent.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/config.h"
#include "server/base/logging.h"
#include "server/base/tls_files.h"

namespace runahead {

struct ProcessOptions {
  std::string listen = "127.0.0.1:0";
  std::string metrics_listen = "127.0.0.1:0";
  std::string cluster_key;  // path; empty: none
  TlsFiles cluster_tls;     // of the connections between processes of the cluster; none: they are not encrypted
  std::string cluster_tls_name = "runahead-cluster";
  bool channelz = false;
  std::string log_level = "info";
  std::string log_format = "text";
  absl::Duration drain_timeout = absl::Seconds(30);
  int max_connections = 4096;
  absl::Duration port_patience = absl::Seconds(30);
  int connection_streams = 1024;
  int64_t min_arrival_rate = int64_t{64} << 10;  // bytes a second
  int ready_fd = -1;
  int parent_pid = 0;

  LogLevel level() const;  // of log_level, which the schema has checked
  TlsSpec cluster_tls_spec() const { return {"cluster_tls", cluster_tls, cluster_tls_name}; }
  LogFormat format() const { return log_format == "json" ? LogFormat::kJson : LogFormat::kText; }
};

// Declares listen, metrics_listen, cluster_key, cluster_tls_*, channelz, log_level, log_format, drain_timeout,
// max_connections, port_patience, connection_streams, min_arrival_rate, and as flags only ready_fd and parent_pid.
void DeclareProcessOptions(ConfigSchema& schema, ProcessOptions& options);

// Writes {"address":"127.0.0.1:1234","metrics":"127.0.0.1:1235"} and a newline to `fd`, then closes it: what `runahead
// up` waits for from a child. Does nothing when `fd` is negative. INVALID_ARGUMENT when `fd` is not open for writing.
absl::Status WriteReadyLine(int fd, const std::string& address, const std::string& metrics_address);

// From now on SIGTERM comes when the thread that started this process ends (the kernel watches the thread, not the
// process). Does nothing when `parent_pid` is 0. FAILED_PRECONDITION when it is not, or no longer, the parent: then
// nobody would ever send the signal, and the caller should leave.
absl::Status DieWithParent(int parent_pid);

// Ends the process at once, with exit code 1 and a line that says why: for a process that cannot do its work any more,
// and so may not be able to end in good order either.
[[noreturn]] void EndProcess(const absl::Status& why);

}  // namespace runahead
