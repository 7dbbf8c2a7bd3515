#include "server/base/live_tls.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/base/logging.h"

namespace runahead {

absl::StatusOr<std::unique_ptr<LiveTls>> LiveTls::Open(TlsSpec spec, absl::Time now) {
  RUNAHEAD_RETURN_IF_ERROR(CheckTlsFiles(spec));
  std::unique_ptr<LiveTls> tls(new LiveTls(std::move(spec)));
  tls->seen_ = ReadTlsTexts(tls->spec_);
  RUNAHEAD_ASSIGN_OR_RETURN(tls->material_, tls->Judge(tls->seen_, now));
  return tls;
}

absl::StatusOr<TlsMaterial> LiveTls::Judge(const absl::StatusOr<TlsTexts>& texts, absl::Time now) const {
  RUNAHEAD_RETURN_IF_ERROR(texts.status());
  return CheckTls(spec_, *texts, now);
}

absl::Status LiveTls::Follow(Taker taker) {
  RUNAHEAD_RETURN_IF_ERROR(taker(material_));
  takers_.push_back(std::move(taker));
  return absl::OkStatus();
}

absl::Status LiveTls::Take(TlsMaterial material) {
  for (const Taker& taker : takers_) RUNAHEAD_RETURN_IF_ERROR(taker(material));
  material_ = std::move(material);
  return absl::OkStatus();
}

void LiveTls::Poll(absl::Time now, const TlsMetrics& metrics) {
  if (now < next_look_ && now + kTlsPeriod >= next_look_) return;  // unless the clock was set back
  next_look_ = now + kTlsPeriod;
  metrics.SetExpiry(material_.expires);
  absl::StatusOr<TlsTexts> texts = ReadTlsTexts(spec_);
  const bool same = texts == seen_;
  if (same && taken_.ok()) {
    doubted_.reset();
    return;
  }
  absl::StatusOr<TlsMaterial> material = Judge(texts, now);
  if (!material.ok() && !same && doubted_ != texts) {
    doubted_ = std::move(texts);
    return;
  }
  doubted_.reset();
  seen_ = std::move(texts);
  const absl::Status taken = material.ok() ? Take(*std::move(material)) : material.status();
  const bool said = same && taken == taken_;
  taken_ = taken;
  if (said) return;
  if (taken.ok()) {
    metrics.SetExpiry(material_.expires);
    metrics.reloaded.Increment();
    LogInfo("tls", spec_.prefix, "_cert: ", spec_.files.cert, " has changed: new connections take it, until ",
            absl::FormatTime("%Y-%m-%d %H:%M UTC", material_.expires, absl::UTCTimeZone()));
  } else {
    metrics.failed.Increment();
    LogWarning("tls", taken.message(), "; the certificate from before stays in use");
  }
}

}  // namespace runahead
