#include "worker/handoff/opened_rows.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/tensor.h"

namespace runahead {

OpenedRows::OpenedRows(const KvStoreOptions& options)
    : how_(*options.quantisation),
      stored_row_bytes_(options.stored_row_bytes()),
      row_bytes_(options.row_bytes),
      values_(options.row_values()) {}

OpenedRows::~OpenedRows() {
  for (const Place& place : places_) place.used.Wait().IgnoreError();
}

absl::Status OpenedRows::TakeMemory() {
  if (stream_ != nullptr) return absl::OkStatus();
  const auto place_bytes = static_cast<size_t>(kKvBlockTokens * row_bytes_);
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> memory,
                            how_.host->Allocate(places_.size() * place_bytes, MemoryKind::kHost));
  for (size_t i = 0; i < places_.size(); ++i) {
    places_[i].rows = BufferRef::Whole(memory).Slice(i * place_bytes, place_bytes);
  }
  stream_ = how_.host->NewStream("opened rows");
  return absl::OkStatus();
}

absl::Status OpenedRows::OpenInto(const KvSpan& stored, const BufferRef& rows) {
  const Tensor opened = MakeTensor(rows, how_.dtype, stored.tokens, values_);
  const absl::Status enqueued = how_.host->DequantizeKv(*stream_, stored.rows, how_.quant, opened);
  const absl::Status done = how_.host->Record(*stream_).Wait();
  return enqueued.ok() ? done : enqueued;
}

absl::Status OpenedRows::Open(const std::vector<KvSpan>& stored, Use use) {
  RUNAHEAD_RETURN_IF_ERROR(TakeMemory());
  for (const KvSpan& span : stored) {
    for (int64_t first = 0; first < span.tokens; first += kKvBlockTokens) {
      const int64_t count = std::min(kKvBlockTokens, span.tokens - first);
      const KvSpan piece{span.rows.Slice(static_cast<size_t>(first * stored_row_bytes_),
                                         static_cast<size_t>(count * stored_row_bytes_)),
                         count};
      Place& place = places_[next_++ % places_.size()];
      place.used.Wait().IgnoreError();  // its user says what became of them
      const KvSpan opened{place.rows.Slice(0, static_cast<size_t>(count * row_bytes_)), count};
      RUNAHEAD_RETURN_IF_ERROR(OpenInto(piece, opened.rows));
      RUNAHEAD_ASSIGN_OR_RETURN(place.used, use(opened));
    }
  }
  return absl::OkStatus();
}

}  // namespace runahead
