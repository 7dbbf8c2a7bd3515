// The certificate of a running process: follows its files.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/tls_files.h"
#include "server/base/tls_metrics.h"

namespace runahead {

inline constexpr absl::Duration kTlsPeriod = absl::Seconds(1);

// Used by one thread.
class LiveTls {
 public:
  // Told of the material that is in use from now on. Or gives an error, and goes on with the one from before.
  using Taker = std::function<absl::Status(const TlsMaterial&)>;

  // Reads the files of `spec`, which are given, as they are now. Errors are CheckTlsFiles', ReadTlsTexts' and
  // CheckTls'.
  static absl::StatusOr<std::unique_ptr<LiveTls>> Open(TlsSpec spec, absl::Time now = absl::Now());

  // `taker` is called at once, and with each change from within Poll. Its error, the first time: it does not follow.
  absl::Status Follow(Taker taker);

  // Looks at the files if the last look was kTlsPeriod ago or longer. Where they say something new and good, it is
  // taken. What cannot be taken and is the same at the next look leaves what is in use as it is: the log says why, and
  // it is counted, once a change. (The first look may have come between the writing of two files.) It is judged again
  // at each look, for it may become good with time, and said again where the reason is another. `now` is the time of
  // day. Reads files, so others must not wait for it.
  void Poll(absl::Time now, const TlsMetrics& metrics);

  const TlsMaterial& material() const { return material_; }

 private:
  explicit LiveTls(TlsSpec spec) : spec_(std::move(spec)) {}
  absl::StatusOr<TlsMaterial> Judge(const absl::StatusOr<TlsTexts>& texts, absl::Time now) const;
  absl::Status Take(TlsMaterial material);

  const TlsSpec spec_;
  TlsMaterial material_;
  std::vector<Taker> takers_;
  absl::Time next_look_ = absl::InfinitePast();
  absl::StatusOr<TlsTexts> seen_;                    // of the files, when something came of it
  absl::Status taken_;                               // what came of it
  std::optional<absl::StatusOr<TlsTexts>> doubted_;  // at the last look: new, and no good
};

}  // namespace runahead
