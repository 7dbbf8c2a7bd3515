// Keeps child processes running: starts them, hears when they serve, starts the dead again on their old ports (later
// and later where they go on dying), stops all. One thread does everything, so nothing needs a lock.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/up/child.h"
#include "client/up/held_port.h"
#include "client/up/restart_policy.h"

namespace runahead {

struct SupervisorOptions {
  RestartLimits restarts;
  // From SIGTERM to SIGKILL, for each group of children.
  absl::Duration stop_timeout = absl::Seconds(20);
  // Gets one line, without a newline, for each event that a person wants to know of.
  std::function<void(const std::string&)> say;
};

class Supervisor {
 public:
  // What is known of a child.
  struct View {
    std::string name;
    pid_t pid = -1;     // -1: dead
    ReadyLine address;  // empty until it has served once
    bool serving = false;
  };

  // Blocks SIGINT, SIGTERM, SIGCHLD, SIGUSR1 and SIGUSR2 in the calling thread until destroyed; make it before any
  // other thread. All further calls come from the same thread. The last two change the level of this process' log
  // (ChangeLogLevel) and are passed on to all children.
  explicit Supervisor(SupervisorOptions options);
  ~Supervisor();  // kills what Stop has not ended
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts `group` all at once where each is to listen, with metrics on free loopback ports, and adds it to what Run
  // watches. UNAVAILABLE names what cannot be run.
  absl::Status Start(const std::vector<ChildSpec>& group);

  // Watches until `done()` is true, which is asked after each event and each `tick`. CANCELLED when a stop signal came;
  // UNAVAILABLE when a child died before it ever served, or wrote nonsense, and when one died too often that is vital,
  // or before GoOnDegraded: then call Stop.
  absl::Status RunUntil(const std::function<bool()>& done, absl::Duration tick = absl::InfiniteDuration());

  // The others are of use by now: from here on a child that is not vital may die as often as it likes, and cannot be
  // started for as long as that lasts. It is said, and tried again.
  void GoOnDegraded() { degraded_may_go_on_ = true; }

  // Ends the groups, the one started last first: SIGTERM, then SIGKILL after stop_timeout or on a second stop signal;
  // SIGKILL at once where a child does not serve yet.
  void Stop();

  bool AllServing() const;
  std::vector<View> children() const;  // in the order of their start

 private:
  struct Watched {
    ChildSpec spec;
    int group = 0;
    RestartPolicy policy;
    std::optional<Child> process;          // none: dead
    std::optional<absl::Time> restart_at;  // set when dead and to be started again
    ReadyLine address;
    std::unique_ptr<HeldPort> port, metrics_port;  // so that both are still there after a death
    bool serving = false;
    bool has_served = false;
    absl::Time served_since = absl::InfiniteFuture();  // of this life
    std::string complaint;                             // why we killed it
  };

  absl::Status Launch(Watched& child);
  absl::Status HandleEvents();
  void HandleReady(Watched& child);
  absl::Status HandleDeath(Watched& child, int wait_status);
  absl::Status StartAgainLater(Watched& child, const std::string& what);
  void Poll(absl::Duration timeout);
  void PassOn(int signal);
  void StopGroup(int group, int patience);
  absl::Duration UntilRestart() const;

  const SupervisorOptions options_;
  sigset_t before_;
  int signal_fd_;
  int stop_signals_ = 0;  // SIGINT and SIGTERM seen
  int groups_ = 0;
  bool degraded_may_go_on_ = false;
  std::vector<std::unique_ptr<Watched>> children_;
};

}  // namespace runahead
