// The one place where prefill work gets its order. Start, Cancel and Release are appended to the control streams of all
// members under one lock, so that any two jobs stand in the same order on every worker that both of them touch: what
// keeps waits between workers acyclic.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.pb.h"

namespace runahead {

// For how long the cause of a failure is awaited when a neighbour has reported what it did to it. A member that died is
// known to be dead after 3 s.
inline constexpr absl::Duration kCauseTimeout = absl::Seconds(5);

// The way to one worker.
class CommandSink {
 public:
  virtual ~CommandSink() = default;
  // Appends; never blocks. Drops what cannot be sent any more: the sink's owner calls Sequencer::Detach then.
  virtual void Write(v1::ControlCommand command) = 0;
};

// What ended a job before its time.
enum class JobFault {
  kNone,
  kLost,     // a member went away: it died, hangs, or is cut off
  kFailed,   // a member lives, and failed by its own fault
  kPath,     // an edge between living members, or the hand-off to the decode worker
  kRequest,  // it was cancelled, was out of time, or is one that no worker could have carried out
};

// A member that says that a path of its own failed: the hand-off, or an edge to a neighbour.
struct FailedOver {
  int worker;
  bool handoff;
};

// How a job ended, and on which worker what ended it happened; -1: on none.
struct JobOutcome {
  absl::Status status;
  JobFault fault = JobFault::kNone;
  int worker = -1;
  std::vector<FailedOver> failed_over = {};  // as all members have said until then
};

// What a job's owner hears. Called without locks on the threads that read the control streams; must not block. Calls of
// different members may overlap.
struct JobEvents {
  std::function<void(const v1::FirstToken&)> first_token;  // at most once; before ended(OK)
  // Once: OK when every member is done, else the first cause, by the worker it happened on. When a neighbour reports
  // first what a failure did to it, this waits for the report of the cause: until the last member's end, and all
  // members are told to end at once, but no longer than kCauseTimeout, for one may answer pings and never end.
  std::function<void(const JobOutcome&)> ended;
  std::function<void(int worker)> member_free;  // once a member: the job has nothing unfinished there any more
  // What a member said of its end: of a failure also whose it was, but none once the job has ended. At most once a
  // member.
  std::function<void(int worker, const absl::Status& said, v1::JobCause cause)> reported;
  // What a member recorded, where that was asked for; before its member_free. May be absent.
  std::function<void(int worker, const v1::TraceSpans&)> spans = {};
  // What a member's tokens were given, where that was asked for. May be absent.
  std::function<void(int worker, const v1::PromptScores&)> scores = {};
};

// Thread-safe. Workers are numbers that the registry gives out.
class Sequencer {
 public:
  Sequencer();

  // `worker` can be sent to from now on. Detach is called once for each Attach, when the stream is broken: every job
  // on the worker that is not done there fails with UNAVAILABLE naming worker and `why`, and is cancelled elsewhere.
  void Attach(int worker, std::string name, std::shared_ptr<CommandSink> sink) RUNAHEAD_EXCLUDES(mu_);
  void Detach(int worker, const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);

  // Between the two nothing new is started on an attached worker, whose stream broke and is being resumed; what it has
  // goes on, and may be cancelled and released. Attach and Detach end it too.
  void Suspend(int worker) RUNAHEAD_EXCLUDES(mu_);
  void Resume(int worker) RUNAHEAD_EXCLUDES(mu_);

  // Appends commands that belong to no job (FormLine, Drained, MoveSequence), in one go; workers that are not attached
  // are left out.
  void Send(std::vector<std::pair<int, v1::ControlCommand>> commands) RUNAHEAD_EXCLUDES(mu_);

  // Gives the job its number and its place in the order, and sends every member its part, head first. The number is
  // filled in here. UNAVAILABLE naming it when a member is not attached, or is suspended: then nothing was sent, and no
  // event will come.
  absl::StatusOr<uint64_t> Start(std::vector<std::pair<int, v1::StartJob>> parts, JobEvents events)
      RUNAHEAD_EXCLUDES(mu_);

  // Cancels what is not done of the job at every member; ended(CANCELLED) is called unless it has ended. Nothing
  // happens when the job is unknown or done.
  void Cancel(uint64_t job) RUNAHEAD_EXCLUDES(mu_);

  // Gives a lease back.
  void Release(int worker, const v1::LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);

  // Ends the jobs whose cause has not come in time with the first report. Cheap: call it more often than once a second.
  void EndOverdue(absl::Time now) RUNAHEAD_EXCLUDES(mu_);

  // A report that came by the worker's stream, in the order received. Pongs are ignored.
  void OnReport(int worker, const v1::ControlReport& report) RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Member {
    int worker;
    bool done = false;
  };
  // How a member's part ended.
  struct End : JobOutcome {
    bool consequence = false;  // of what happened elsewhere
  };
  struct Job {
    std::vector<Member> members;
    JobEvents events;
    End outcome;  // of those that have ended so far, but for failed_over
    std::vector<FailedOver> failed_over;
    absl::Time cause_due = absl::InfiniteFuture();
    bool cancel_sent = false;  // it cannot end well any more
    bool ended = false;
  };
  struct Worker {
    std::string name;
    std::shared_ptr<CommandSink> sink;
    bool suspended = false;
  };
  using Calls = std::vector<std::function<void()>>;  // events to call once the lock is given back

  void MemberDone(uint64_t id, int worker, End end, Calls& calls) RUNAHEAD_REQUIRES(mu_);
  void EndJob(uint64_t id, Job& job, const JobOutcome& end, Calls& calls) RUNAHEAD_REQUIRES(mu_);
  void SendCancels(uint64_t id, Job& job) RUNAHEAD_REQUIRES(mu_);
  End EndOf(int worker, const v1::JobDone& done) const RUNAHEAD_REQUIRES(mu_);
  Calls Dispatch(int worker, const v1::ControlReport& report) RUNAHEAD_EXCLUDES(mu_);

  Mutex mu_;
  absl::flat_hash_set<uint64_t> without_cause_ RUNAHEAD_GUARDED_BY(mu_);  // jobs that failed and have not ended
  absl::flat_hash_map<int, Worker> workers_ RUNAHEAD_GUARDED_BY(mu_);
  absl::flat_hash_map<int, std::string> names_ RUNAHEAD_GUARDED_BY(mu_);  // as last attached, lost ones too
  absl::flat_hash_map<uint64_t, Job> jobs_ RUNAHEAD_GUARDED_BY(mu_);
  uint64_t next_job_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
