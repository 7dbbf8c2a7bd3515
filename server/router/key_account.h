// What the requests of one API key take of its limits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.pb.h"
#include "server/base/clock.h"
#include "server/router/api_keys.h"
#include "server/router/key_metrics.h"
#include "server/router/rate_bucket.h"

namespace runahead {

class KeyAccount;

// What a request has taken; gives back what it did not use. Several answers to one prompt have a grant each, which
// share what was taken. Movable; one that was not given is of no key and has no limits. For one thread.
class [[nodiscard]] KeyGrant {
 public:
  KeyGrant() = default;
  KeyGrant(KeyGrant&& other) noexcept = default;
  KeyGrant& operator=(KeyGrant&& other) noexcept;
  ~KeyGrant() { Settle(0, 0); }

  bool given() const { return use_ != nullptr; }
  // The key's limits by now, which may be others than when the request came.
  KeyLimits limits() const;

  // Takes so many tokens, all that the request may come to: once, before it is shared. As KeyAccount refuses.
  absl::Status TakeTokens(int64_t tokens);

  // Another grant of the same request.
  KeyGrant Share() const;

  // What the grant is for has ended, and took so many tokens. Once all grants of the request have ended the tokens that
  // none took are free, and so is its place. It is of no key from now on.
  void Settle(int64_t prompt_tokens, int64_t output_tokens);

 private:
  friend class KeyAccount;
  class Use;
  explicit KeyGrant(std::shared_ptr<Use> use) : use_(std::move(use)) {}

  std::shared_ptr<Use> use_;
};

// Thread-safe. Held by a shared_ptr: grants outlive the file's entry. Refusals are RESOURCE_EXHAUSTED, and say when to
// try again, where others have taken what the key may have now; PERMISSION_DENIED for what it may never. They name the
// key and the limit, and are counted.
class KeyAccount : public std::enable_shared_from_this<KeyAccount> {
 public:
  // `metrics` and `clock` outlive it.
  KeyAccount(std::string name, const KeyLimits& limits, KeyMetrics& metrics, Clock& clock);

  const std::string& name() const { return name_; }
  KeyLimits limits() const RUNAHEAD_EXCLUDES(mu_);
  // What was taken before counts on.
  void SetLimits(const KeyLimits& limits) RUNAHEAD_EXCLUDES(mu_);

  // A call has come, of any method.
  absl::Status LetIn() RUNAHEAD_EXCLUDES(mu_);

  // What a request asks for of a tenant (empty: of none), a priority and an answer's length. One that does not say its
  // priority has the highest that it may.
  absl::Status Check(absl::string_view tenant, v1::GenerateRequest& request) RUNAHEAD_EXCLUDES(mu_);

  // A request is to run.
  absl::StatusOr<KeyGrant> Enter() RUNAHEAD_EXCLUDES(mu_);

 private:
  friend class KeyGrant;  // and its Use
  // When they were taken.
  absl::StatusOr<absl::Time> TakeTokens(int64_t tokens) RUNAHEAD_EXCLUDES(mu_);
  // It took `taken` tokens at `since`.
  void Leave(int64_t taken, absl::Time since, int64_t prompt_tokens, int64_t output_tokens) RUNAHEAD_EXCLUDES(mu_);
  absl::Status Refuse(KeyLimit limit, const absl::Status& why) RUNAHEAD_REQUIRES(mu_);
  KeyMetrics::Series& Series() RUNAHEAD_REQUIRES(mu_);

  const std::string name_;
  KeyMetrics& metrics_;
  Clock& clock_;
  mutable Mutex mu_;
  KeyLimits limits_ RUNAHEAD_GUARDED_BY(mu_);
  RateBucket requests_ RUNAHEAD_GUARDED_BY(mu_);
  RateBucket tokens_ RUNAHEAD_GUARDED_BY(mu_);
  int64_t running_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::optional<KeyMetrics::Series> series_ RUNAHEAD_GUARDED_BY(mu_);  // since its first call
};

}  // namespace runahead
