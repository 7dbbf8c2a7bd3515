#include "server/base/host_lookup.h"

#include <netdb.h>
#include <sys/socket.h>

#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"
#include "kernels/base/with_threads.h"
#include "server/base/socket_address.h"

namespace runahead {

absl::StatusOr<std::vector<std::string>> SystemAddresses(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::NotFoundError(gai_strerror(error));
  }
  std::vector<std::string> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    std::string address = NumericHost(*each->ai_addr);
    if (!address.empty()) addresses.push_back(std::move(address));
  }
  freeaddrinfo(found);
  if (addresses.empty()) return absl::NotFoundError("it has no address of the internet's protocols");
  return addresses;
}

// Lives for as long as anybody waits for it or answers it.
struct HostLookup::Question {
  Question(std::string host_, Resolver resolver_) : host(std::move(host_)), resolver(std::move(resolver_)) {}

  void Answer() {
    NameThread("lookup");
    absl::StatusOr<std::vector<std::string>> addresses = resolver(host);
    MutexLock lock(mu);
    found = std::move(addresses);
    open = false;
    changed.NotifyAll();
  }

  const std::string host;
  const Resolver resolver;
  Mutex mu;
  CondVar changed;
  bool open RUNAHEAD_GUARDED_BY(mu) = false;  // a thread asks
  bool cut RUNAHEAD_GUARDED_BY(mu) = false;
  std::optional<absl::StatusOr<std::vector<std::string>>> found RUNAHEAD_GUARDED_BY(mu);  // by the last that asked
};

HostLookup::HostLookup(std::string host, Resolver resolver)
    : question_(std::make_shared<Question>(std::move(host), std::move(resolver))) {}

HostLookup::~HostLookup() = default;

absl::StatusOr<std::vector<std::string>> HostLookup::Find(absl::Duration patience) {
  Question& question = *question_;
  const absl::Time end = MonotonicNow() + patience;
  MutexLock lock(question.mu);
  if (!question.open && !question.cut) {
    question.found.reset();
    RUNAHEAD_RETURN_IF_ERROR(WithThreads([this]() -> absl::Status {
      std::thread([kept = question_] { kept->Answer(); }).detach();
      return absl::OkStatus();
    }));
    question.open = true;
  }
  while (question.open && !question.cut && MonotonicNow() < end) {
    question.changed.WaitFor(question.mu, end - MonotonicNow());
  }
  if (question.cut) return absl::CancelledError("the lookup was given up");
  if (question.open) {
    return absl::DeadlineExceededError(absl::StrCat("no name server has said within ", absl::FormatDuration(patience),
                                                    " what ", question.host, " is"));
  }
  return *question.found;
}

void HostLookup::Cut() {
  MutexLock lock(question_->mu);
  question_->cut = true;
  question_->changed.NotifyAll();
}

}  // namespace runahead
