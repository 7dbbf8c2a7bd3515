#include "client/up/supervisor.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/base/wait_status.h"
#include "kernels/base/status_macros.h"
#include "server/base/clock.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

constexpr char kAnyPort[] = "127.0.0.1:0";
constexpr absl::Time kNever = absl::InfiniteFuture();

}  // namespace

Supervisor::Supervisor(SupervisorOptions options) : options_(std::move(options)) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  RUNAHEAD_CHECK(pthread_sigmask(SIG_BLOCK, &signals, &before_) == 0);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  RUNAHEAD_CHECK(signal_fd_ >= 0);
}

Supervisor::~Supervisor() {
  children_.clear();
  close(signal_fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

absl::Status Supervisor::Start(const std::vector<ChildSpec>& group) {
  for (const ChildSpec& spec : group) {
    // Before the child listens: between its death and our hearing of it the system could give its ports away.
    auto port = std::make_unique<HeldPort>(spec.listen), metrics_port = std::make_unique<HeldPort>(kAnyPort);
    const ReadyLine address = {port->address(), metrics_port->address()};
    children_.push_back(std::make_unique<Watched>(Watched{.spec = spec,
                                                          .group = groups_,
                                                          .policy = RestartPolicy(options_.restarts),
                                                          .process = {},
                                                          .restart_at = {},
                                                          .address = address,
                                                          .port = std::move(port),
                                                          .metrics_port = std::move(metrics_port),
                                                          .complaint = {}}));
    RUNAHEAD_RETURN_IF_ERROR(Launch(*children_.back()));
  }
  ++groups_;
  return absl::OkStatus();
}

absl::Status Supervisor::Launch(Watched& child) {
  child.restart_at.reset();
  child.complaint.clear();
  RUNAHEAD_ASSIGN_OR_RETURN(child.process, Child::Start(child.spec, child.address.address, child.address.metrics));
  return absl::OkStatus();
}

absl::Status Supervisor::RunUntil(const std::function<bool()>& done, absl::Duration tick) {
  while (true) {
    RUNAHEAD_RETURN_IF_ERROR(HandleEvents());
    if (stop_signals_ > 0) return absl::CancelledError("stopped by a signal");
    if (done()) return absl::OkStatus();
    Poll(std::min(tick, UntilRestart()));
  }
}

// Waits for an event; counts stop signals, and passes on those that are for all processes.
void Supervisor::Poll(absl::Duration timeout) {
  std::vector<pollfd> waits = {{signal_fd_, POLLIN, 0}};
  for (const auto& child : children_) {
    if (child->process.has_value() && child->process->ready_fd() >= 0) {
      waits.push_back({child->process->ready_fd(), POLLIN, 0});
    }
  }
  // Rounded up: a poll that ends just before the moment would be repeated at once.
  const int64_t ms = timeout == absl::InfiniteDuration()
                         ? -1
                         : std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout + absl::Milliseconds(1)), 0, 3600'000);
  poll(waits.data(), waits.size(), static_cast<int>(ms));
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGUSR1 || info.ssi_signo == SIGUSR2) {
      PassOn(static_cast<int>(info.ssi_signo));
    } else if (info.ssi_signo != SIGCHLD) {
      ++stop_signals_;
    }
  }
}

void Supervisor::PassOn(int signal) {
  ChangeLogLevel(signal == SIGUSR1 ? LogChange::kMore : LogChange::kLess);
  for (const auto& child : children_) {
    if (child->process.has_value()) child->process->Signal(signal);
  }
}

// Deaths, ready lines and restarts that are due, whatever woke us: signals may be merged.
absl::Status Supervisor::HandleEvents() {
  for (const auto& child : children_) {
    if (child->process.has_value()) {
      // In this order: what it wrote before its end is then there to be read.
      const std::optional<int> end = child->process->Reap();
      HandleReady(*child);
      if (end.has_value()) RUNAHEAD_RETURN_IF_ERROR(HandleDeath(*child, *end));
    }
    if (child->restart_at.has_value() && *child->restart_at <= RealClock().Now()) {
      const absl::Status started = Launch(*child);
      if (!started.ok()) RUNAHEAD_RETURN_IF_ERROR(StartAgainLater(*child, std::string(started.message())));
    }
  }
  return absl::OkStatus();
}

void Supervisor::HandleReady(Watched& child) {
  const auto ready = child.process->ReadReady();
  if (!ready.has_value()) return;
  if (!ready->ok()) {
    // It is of no use. Where it has ended by itself already, this does nothing, and its own end is reported.
    child.complaint = absl::StrCat(" (", ready->status().message(), ")");
    child.process->Signal(SIGKILL);
    return;
  }
  child.address = **ready;
  child.serving = true;
  if (options_.say) {
    options_.say(absl::StrCat(child.spec.name, child.has_served ? " serves again" : " serves", " on ",
                              child.address.address, ", process ", child.process->pid()));
  }
  child.has_served = true;
  child.served_since = RealClock().Now();
}

absl::Status Supervisor::HandleDeath(Watched& child, int wait_status) {
  child.process.reset();
  child.serving = false;
  const bool killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
  const std::string what = absl::StrCat(child.spec.name, " ", DescribeEnd(wait_status), killed ? child.complaint : "");
  if (!child.has_served) return absl::UnavailableError(absl::StrCat(what, " before it served; its messages are above"));
  return StartAgainLater(child, what);
}

// `what` has happened to a child that has served before.
absl::Status Supervisor::StartAgainLater(Watched& child, const std::string& what) {
  const absl::Time now = RealClock().Now();
  const absl::Duration served = std::max(absl::ZeroDuration(), now - std::exchange(child.served_since, kNever));
  child.restart_at = child.policy.OnDeath(now, served);
  const int deaths = child.policy.deaths();
  if (child.policy.too_many() && (child.spec.vital || !degraded_may_go_on_)) {
    return absl::UnavailableError(
        absl::StrCat(what, "; that was death number ", deaths, " in a row, none of them after ",
                     absl::FormatDuration(options_.restarts.healthy), " of serving, so it is not started again"));
  }
  if (options_.say) {
    std::string row;
    if (deaths > 1) row = absl::StrCat("; that was death number ", deaths, " in a row");
    if (degraded_may_go_on_ && !child.spec.vital) {
      const auto serves = [](const auto& other) { return other->serving; };
      absl::StrAppend(&row, "; the cluster goes on degraded, with ",
                      std::count_if(children_.begin(), children_.end(), serves), " of ", children_.size(),
                      " processes");
    }
    options_.say(absl::StrCat(what, row, "; it is started again on ", child.address.address, " in ",
                              absl::FormatDuration(*child.restart_at - now)));
  }
  return absl::OkStatus();
}

absl::Duration Supervisor::UntilRestart() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& child : children_) next = std::min(next, child->restart_at.value_or(absl::InfiniteFuture()));
  if (next == absl::InfiniteFuture()) return absl::InfiniteDuration();
  return std::max(next - RealClock().Now(), absl::ZeroDuration());
}

void Supervisor::Stop() {
  for (const auto& child : children_) child->restart_at.reset();
  const int patience = std::max(stop_signals_, 1);
  for (int group = groups_; group >= 0; --group) StopGroup(group, patience);  // the last may have started in part only
}

// More stop signals than `patience` mean that somebody will not wait.
void Supervisor::StopGroup(int group, int patience) {
  std::vector<Watched*> left;
  for (const auto& child : children_) {
    if (child->group == group && child->process.has_value()) left.push_back(child.get());
  }
  const absl::Time give_up = RealClock().Now() + options_.stop_timeout;
  bool killed = false;
  // What does not serve yet has nothing to finish, and may be deep in loading.
  for (Watched* const child : left) child->process->Signal(child->serving ? SIGTERM : SIGKILL);
  while (true) {
    left.erase(std::remove_if(left.begin(), left.end(),
                              [](Watched* child) {
                                if (!child->process->Reap().has_value()) return false;
                                child->process.reset();
                                child->serving = false;
                                return true;
                              }),
               left.end());
    if (left.empty()) return;
    const absl::Duration rest = give_up - RealClock().Now();
    if (!killed && (rest <= absl::ZeroDuration() || stop_signals_ > patience)) {
      for (Watched* const child : left) {
        if (options_.say) options_.say(absl::StrCat(child->spec.name, " did not stop in time and is killed"));
        child->process->Signal(SIGKILL);
      }
      killed = true;
    }
    for (Watched* const child : left) child->process->ReadReady();  // or a late ready line would keep Poll awake
    Poll(killed ? absl::InfiniteDuration() : rest);
  }
}

bool Supervisor::AllServing() const {
  return std::all_of(children_.begin(), children_.end(), [](const auto& child) { return child->serving; });
}

std::vector<Supervisor::View> Supervisor::children() const {
  std::vector<View> views;
  for (const auto& child : children_) {
    views.push_back({.name = child->spec.name,
                     .pid = child->process.has_value() ? child->process->pid() : -1,
                     .address = child->has_served ? child->address : ReadyLine{},
                     .serving = child->serving});
  }
  return views;
}

}  // namespace runahead
