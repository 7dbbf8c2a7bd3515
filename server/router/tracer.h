// Which requests are recorded, and the traces of those that were.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.pb.h"
#include "server/base/trace_context.h"
#include "server/router/request_trace.h"

namespace runahead {

enum class TraceMode { kOff, kAsked, kAll };  // kAsked: those whose caller records its part too

// "off", "asked" or "all"; kOff for anything else.
TraceMode ParseTraceMode(absl::string_view name);

// Thread-safe. Keeps the traces of the last `kept` requests that have ended, in memory, packed: some 30 bytes a span.
class Tracer : public std::enable_shared_from_this<Tracer> {
 public:
  // Where each trace goes that is whole, besides: called on whatever thread let go of it last, so it must not block.
  using Export = std::function<void(WholeTrace)>;

  static std::shared_ptr<Tracer> Create(TraceMode mode, size_t kept, Export exported = nullptr);

  // Null where the request is not to be recorded. `caller` is the span that it came from, where it says one.
  std::shared_ptr<RequestTrace> Begin(const std::string& request_id, const std::optional<TraceContext>& caller,
                                      absl::Time arrival) RUNAHEAD_EXCLUDES(mu_);

  // NOT_FOUND says why there is none; with RetryInfo where it is not whole yet. Of requests of one name the last one
  // that ended.
  absl::StatusOr<v1::Trace> Get(const std::string& request_id) const RUNAHEAD_EXCLUDES(mu_);

 private:
  Tracer(TraceMode mode, size_t kept, Export exported) : mode_(mode), kept_(kept), export_(std::move(exported)) {}
  void Keep(WholeTrace whole) RUNAHEAD_EXCLUDES(mu_);
  void KeepPacked(const std::string& request_id, std::string packed) RUNAHEAD_EXCLUDES(mu_);
  absl::Status Missing(const std::string& request_id) const RUNAHEAD_REQUIRES(mu_);

  const TraceMode mode_;
  const size_t kept_;
  const Export export_;
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, int> recording_ RUNAHEAD_GUARDED_BY(mu_);         // how many of that name
  std::deque<std::pair<std::string, std::string>> traces_ RUNAHEAD_GUARDED_BY(mu_);  // the latest last; packed
  std::deque<std::string> forgotten_ RUNAHEAD_GUARDED_BY(mu_);                       // the latest last
};

}  // namespace runahead
