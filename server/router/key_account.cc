#include "server/router/key_account.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/rpc/status.h"
#include "server/rpc/tenant_key.h"

namespace runahead {

// Of one request, by all its grants. Thread-safe.
class KeyGrant::Use {
 public:
  explicit Use(std::shared_ptr<KeyAccount> account) : account_(std::move(account)) {}
  ~Use() {
    MutexLock lock(mu_);
    account_->Leave(taken_, since_, prompt_tokens_, output_tokens_);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  KeyAccount& account() const { return *account_; }
  void Took(int64_t tokens, absl::Time since) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    taken_ = tokens;
    since_ = since;
  }
  void Add(int64_t prompt_tokens, int64_t output_tokens) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    prompt_tokens_ += prompt_tokens;
    output_tokens_ += output_tokens;
  }

 private:
  const std::shared_ptr<KeyAccount> account_;
  Mutex mu_;  // the account's is taken inside it
  int64_t taken_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::Time since_ RUNAHEAD_GUARDED_BY(mu_);  // when
  int64_t prompt_tokens_ RUNAHEAD_GUARDED_BY(mu_) = 0, output_tokens_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

KeyGrant& KeyGrant::operator=(KeyGrant&& other) noexcept {
  Settle(0, 0);
  use_ = std::move(other.use_);
  return *this;
}

KeyLimits KeyGrant::limits() const {
  return given() ? use_->account().limits() : KeyLimits();
}

absl::Status KeyGrant::TakeTokens(int64_t tokens) {
  if (!given()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(const absl::Time since, use_->account().TakeTokens(tokens));
  use_->Took(tokens, since);
  return absl::OkStatus();
}

KeyGrant KeyGrant::Share() const {
  return KeyGrant(use_);
}

void KeyGrant::Settle(int64_t prompt_tokens, int64_t output_tokens) {
  if (!given()) return;
  use_->Add(prompt_tokens, output_tokens);
  use_.reset();
}

KeyAccount::KeyAccount(std::string name, const KeyLimits& limits, KeyMetrics& metrics, Clock& clock)
    : name_(std::move(name)), metrics_(metrics), clock_(clock) {
  SetLimits(limits);
}

KeyLimits KeyAccount::limits() const {
  MutexLock lock(mu_);
  return limits_;
}

void KeyAccount::SetLimits(const KeyLimits& limits) {
  const absl::Time now = clock_.Now();
  MutexLock lock(mu_);
  limits_ = limits;
  requests_.SetRate(limits.requests_per_minute, now);
  tokens_.SetRate(limits.tokens_per_minute, now);
}

absl::Status KeyAccount::LetIn() {
  const absl::Time now = clock_.Now();
  MutexLock lock(mu_);
  const absl::Duration wait = requests_.Take(1, now);
  if (wait > absl::ZeroDuration()) {
    return Refuse(KeyLimit::kRequests,
                  WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat(
                                     "requests_per_minute is ", limits_.requests_per_minute, ", and they are used up")),
                                 wait));
  }
  Series().requests->Increment();
  return absl::OkStatus();
}

absl::Status KeyAccount::Check(absl::string_view tenant, v1::GenerateRequest& request) {
  MutexLock lock(mu_);
  if (!tenant.empty() && tenant != name_) {
    return Refuse(KeyLimit::kTenant, absl::PermissionDeniedError(
                                         absl::StrCat(kTenantKey, ": a key's requests are its own, not those of \"",
                                                      Printable(tenant), "\": leave it out")));
  }
  if (limits_.priority == RequestPriority::kLow) {
    if (request.priority() == v1::PRIORITY_NORMAL) {
      return Refuse(KeyLimit::kPriority,
                    absl::PermissionDeniedError("priority: PRIORITY_LOW is the highest it may have"));
    }
    if (request.priority() == v1::PRIORITY_UNSPECIFIED) request.set_priority(v1::PRIORITY_LOW);
  }
  if (limits_.max_tokens > 0 && request.stop().max_tokens() > limits_.max_tokens) {
    return Refuse(KeyLimit::kMaxTokens,
                  absl::PermissionDeniedError(absl::StrCat("stop.max_tokens: ", request.stop().max_tokens(),
                                                           " is more than the ", limits_.max_tokens, " it may have")));
  }
  return absl::OkStatus();
}

absl::StatusOr<KeyGrant> KeyAccount::Enter() {
  MutexLock lock(mu_);
  if (limits_.concurrent_requests > 0 && running_ >= limits_.concurrent_requests) {
    return Refuse(KeyLimit::kConcurrent,
                  absl::ResourceExhaustedError(absl::StrCat("concurrent_requests is ", limits_.concurrent_requests,
                                                            ", and as many run or wait")));
  }
  ++running_;
  return KeyGrant(std::make_shared<KeyGrant::Use>(shared_from_this()));
}

absl::StatusOr<absl::Time> KeyAccount::TakeTokens(int64_t tokens) {
  const absl::Time now = clock_.Now();
  MutexLock lock(mu_);
  if (!tokens_.Holds(tokens)) {
    return Refuse(KeyLimit::kTokens,
                  absl::PermissionDeniedError(absl::StrCat("the request may come to ", tokens,
                                                           " tokens, prompt and max_tokens, and tokens_per_minute is ",
                                                           limits_.tokens_per_minute)));
  }
  const absl::Duration wait = tokens_.Take(tokens, now);
  if (wait == absl::ZeroDuration()) return now;
  return Refuse(KeyLimit::kTokens,
                WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat(
                                   "tokens_per_minute is ", limits_.tokens_per_minute,
                                   ", and what is left is fewer than the request's prompt and max_tokens, ", tokens)),
                               wait));
}

void KeyAccount::Leave(int64_t taken, absl::Time since, int64_t prompt_tokens, int64_t output_tokens) {
  const absl::Time now = clock_.Now();
  MutexLock lock(mu_);
  --running_;
  tokens_.GiveBack(taken - prompt_tokens - output_tokens, taken, since, now);
  Series().prompt_tokens->Increment(static_cast<double>(prompt_tokens));
  Series().output_tokens->Increment(static_cast<double>(output_tokens));
}

absl::Status KeyAccount::Refuse(KeyLimit limit, const absl::Status& why) {
  Series().refusals[static_cast<int>(limit)]->Increment();
  absl::Status named(why.code(), absl::StrCat("the API key \"", name_, "\": ", why.message()));
  const std::optional<absl::Duration> retry_after = RetryAfter(why);
  return retry_after ? WithRetryAfter(named, *retry_after) : named;
}

KeyMetrics::Series& KeyAccount::Series() {
  if (!series_) series_ = metrics_.For(name_);
  return *series_;
}

}  // namespace runahead
