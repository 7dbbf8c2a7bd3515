#include "worker/link/frame_sum.h"

#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/base/logging.h"
#include "server/base/rare_line.h"
#include "worker/link/edge.h"
#include "worker/link/running_sum.h"

namespace runahead {
namespace {

constexpr absl::Duration kDamagePeriod = absl::Seconds(10);

}  // namespace

uint64_t SeedOf(const FrameId& id, size_t size) {
  const uint64_t what[] = {id.job, static_cast<uint64_t>(id.layer), static_cast<uint64_t>(id.piece), size};
  return SumSeed(what, std::size(what));
}

void LogDamagedFrame(const FrameId& id, int times, const PeerKey& from) {
  static RareLine& line = *new RareLine(kDamagePeriod);
  const std::optional<int64_t> frames = line.Happened();
  if (!frames.has_value()) return;
  LogWarning("link", DamagedFrame(id, times).message(), ", from ", Describe(from),
             "; others since the last such line: ", *frames - 1);
}

absl::Status DamagedFrame(const FrameId& id, int times) {
  return absl::DataLossError(absl::StrCat("KV of layer ", id.layer, ", piece ", id.piece, " of job ", id.job,
                                          " came damaged over the link, ", times, times == 1 ? " time" : " times"));
}

}  // namespace runahead
