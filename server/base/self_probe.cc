#include "server/base/self_probe.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/thread_name.h"

namespace runahead {
namespace {

// One question that goes wrong is not yet a sign.
constexpr int kQuestionsInPatience = 6;

}  // namespace

void ProbeVerdict::Unanswered(absl::Duration time, const absl::Status& why) {
  unanswered_ += time;
  why_ = why;
}

absl::Status ProbeVerdict::status() const {
  if (unanswered_ < patience_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("this process's own port has not answered it for ",
                                             absl::FormatDuration(absl::Floor(unanswered_, absl::Milliseconds(1))),
                                             ": ", why_.message()));
}

SelfProbe::SelfProbe(SelfProbeOptions options, Clock& clock)
    : options_(std::move(options)),
      period_(options_.patience / kQuestionsInPatience),
      clock_(clock),
      verdict_(options_.patience),
      thread_([this] { Run(); }) {}

void SelfProbe::Stop() {
  {
    MutexLock lock(mu_);
    if (std::exchange(ending_, true)) return;
    changed_.NotifyAll();
  }
  thread_.join();
}

absl::Status SelfProbe::status() const {
  MutexLock lock(mu_);
  return verdict_.status();
}

bool SelfProbe::Pause() {
  MutexLock lock(mu_);
  const absl::Time until = clock_.Now() + period_;
  while (!ending_ && clock_.Now() < until) clock_.WaitUntil(mu_, changed_, until);
  return !ending_;
}

void SelfProbe::Run() {
  NameThread("probe");
  absl::Time last = clock_.Now();
  bool hopeless = false;
  do {
    const absl::Status answer = options_.ask(period_);
    const absl::Time now = clock_.Now();
    absl::Status status;
    {
      MutexLock lock(mu_);
      if (answer.ok()) {
        verdict_.Answered();
      } else if (!absl::IsResourceExhausted(answer)) {
        verdict_.Unanswered(std::min(now - last, 2 * period_), answer);
      }
      if (!std::exchange(hopeless, verdict_.hopeless()) && hopeless) status = verdict_.status();
    }
    last = now;
    if (!status.ok() && options_.on_hopeless) options_.on_hopeless(status);
  } while (Pause());
}

}  // namespace runahead
