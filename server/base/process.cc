#include "server/base/process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/metrics.h"
#include "server/base/tls_options.h"

namespace runahead {
namespace {

// Addresses hold no control characters (ParseHostPort), so quotes and backslashes are all there is to escape.
std::string JsonString(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace

LogLevel ProcessOptions::level() const {
  const absl::StatusOr<LogLevel> level = ParseLogLevel(log_level);
  RUNAHEAD_CHECK(level.ok());
  return *level;
}

void DeclareProcessOptions(ConfigSchema& schema, ProcessOptions& options) {
  schema.Address("listen", &options.listen, {.any_port = true}, "Where the gRPC services listen");
  schema.Address("metrics_listen", &options.metrics_listen, {.any_port = true}, "Where /metrics and /healthz listen");
  schema.String("cluster_key", &options.cluster_key, {.value_name = "FILE"},
                "The secret of the cluster, the same file for router and workers: workers take calls and links only "
                "from who has it; without one they listen on loopback only");
  DeclareClusterTls(schema, options.cluster_tls, options.cluster_tls_name);
  schema.Bool(
      "channelz", &options.channelz,
      "The port of the gRPC services has gRPC's channelz too, open to all: what connections and calls there are");
  schema.String("log_level", &options.log_level, {.one_of = {"debug", "info", "warning", "error"}},
                "What is logged, with all that is graver; later SIGUSR1 makes it one level more, SIGUSR2 one less");
  schema.String("log_format", &options.log_format, {.one_of = {"text", "json"}},
                "How: text for people, or a JSON object a line");
  schema.Duration(
      "drain_timeout", &options.drain_timeout, {},
      "How long requests of a router and decodes of a worker may go on after SIGTERM before they are ended");
  schema.Int("max_connections", &options.max_connections, {.min = 4, .max = 1 << 20},
             "Connections to the gRPC port at the most, three quarters of them from one address; fewer where the limit "
             "of descriptors is low. Others are closed at once");
  schema.Duration(
      "port_patience", &options.port_patience, {.min = absl::Seconds(1)},
      "How long the gRPC port may leave the process's own questions unanswered before /healthz says so; after "
      "three times as long the process ends");
  schema.Int("connection_streams", &options.connection_streams, {.min = 1, .max = 1 << 20},
             "Calls that one connection may have open at once");
  schema.Bytes("min_arrival_rate", &options.min_arrival_rate, {.min = 1, .max = 1 << 30},
               "Bytes a second that must come of a message, and be taken of an answer that is one; a slower one ends");
  schema.Int("ready_fd", &options.ready_fd, {.min = -1, .max = 1 << 20},
             "File descriptor that gets one line of JSON with the addresses when the process serves; -1 for none");
  schema.FlagOnly();
  schema.Int("parent_pid", &options.parent_pid, {.min = 0, .max = 1 << 22},
             "The process that starts this one; when it ends, this one stops too; 0 for none");
  schema.FlagOnly();
}

absl::Status WriteReadyLine(int fd, const std::string& address, const std::string& metrics_address) {
  if (fd < 0) return absl::OkStatus();
  const std::string line =
      absl::StrCat("{\"address\":", JsonString(address), ",\"metrics\":", JsonString(metrics_address), "}\n");
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t wrote = write(fd, line.data() + done, line.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return absl::ErrnoToStatus(errno, absl::StrCat("ready_fd ", fd, ": cannot write the ready line"));
    done += static_cast<size_t>(wrote);
  }
  close(fd);
  return absl::OkStatus();
}

absl::Status DieWithParent(int parent_pid) {
  if (parent_pid == 0) return absl::OkStatus();
  if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) return absl::ErrnoToStatus(errno, "prctl(PR_SET_PDEATHSIG)");
  // The parent may have ended before the call above: then the signal will never come.
  if (getppid() != parent_pid) {
    return absl::FailedPreconditionError(absl::StrCat("process ", parent_pid, ", which started this one, has ended"));
  }
  return absl::OkStatus();
}

void EndProcess(const absl::Status& why) {
  LogError("main", "ends: ", why.message());
  FlushLog();
  std::_Exit(1);
}

}  // namespace runahead
