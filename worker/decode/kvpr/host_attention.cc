#include "worker/decode/kvpr/host_attention.h"

#include <algorithm>
#include <memory>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// That are read, once for all queries of a sequence.
int64_t PositionsOf(const KvTable& table, int64_t window) {
  int64_t positions = 0;
  for (const KvSequence& sequence : table.layout().sequences) {
    const int64_t begin = std::max(sequence.begin, FirstSeen(window, sequence.length - sequence.queries));
    positions += std::max<int64_t>(0, sequence.end - begin);
  }
  return positions;
}

}  // namespace

absl::Status HostAttention::Enqueue(const ConstTensor& q, const AttentionShape& shape, const KvTable& table,
                                    const ConstBufferRef& layer, const MutTensor& partials) const {
  if (emulated_gbps == 0) return host.AttendPieces(stream, q, shape, table, layer, partials);
  const auto begin = std::make_shared<absl::Time>();
  host.Call(stream, [begin] { *begin = MonotonicNow(); });
  RUNAHEAD_RETURN_IF_ERROR(host.AttendPieces(stream, q, shape, table, layer, partials));
  const absl::Duration takes = absl::Seconds(
      static_cast<double>(PositionsOf(table, shape.window) * shape.kv_row_bytes()) * 8 / (emulated_gbps * 1e9));
  host.Call(stream, [begin, takes] { absl::SleepFor(*begin + takes - MonotonicNow()); });
  return absl::OkStatus();
}

}  // namespace runahead
