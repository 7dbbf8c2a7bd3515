#include "worker/link/frame_sum.h"

#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // the same sum by what vectors the CPU has: three times as fast as by SSE2 alone
#endif

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"
#include "server/base/logging.h"
#include "worker/link/edge.h"

namespace runahead {
namespace {

constexpr absl::Duration kDamagePeriod = absl::Seconds(10);

}  // namespace

uint64_t SumOnHost(const FrameId& id, const void* data, size_t size) {
  const uint64_t what[] = {id.job, static_cast<uint64_t>(id.layer), static_cast<uint64_t>(id.piece), size};
  const uint64_t seed = XXH64(what, sizeof(what), /*seed=*/0);
  return size == 0 ? seed : XXH3_64bits_withSeed(data, size, seed);
}

void LogDamagedFrame(const FrameId& id, int times, const PeerKey& from) {
  struct Said {
    Mutex mu;
    absl::Time next RUNAHEAD_GUARDED_BY(mu) = absl::InfinitePast();
    int64_t unsaid RUNAHEAD_GUARDED_BY(mu) = 0;
  };
  static Said& said = *new Said;
  int64_t unsaid = 0;
  {
    MutexLock lock(said.mu);
    const absl::Time now = MonotonicNow();
    if (now < said.next) {
      ++said.unsaid;
      return;
    }
    said.next = now + kDamagePeriod;
    unsaid = std::exchange(said.unsaid, 0);
  }
  LogWarning("link", DamagedFrame(id, times).message(), ", from ", Describe(from),
             "; others since the last such line: ", unsaid);
}

absl::Status DamagedFrame(const FrameId& id, int times) {
  return absl::DataLossError(absl::StrCat("KV of layer ", id.layer, ", piece ", id.piece, " of job ", id.job,
                                          " came damaged over the link, ", times, times == 1 ? " time" : " times"));
}

}  // namespace runahead
