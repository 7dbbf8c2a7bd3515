// Rows of KV of a store that quantises them, as who computes takes them: what their codes stand for.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/device.h"
#include "kernels/base/event.h"
#include "worker/kv/store.h"

namespace runahead {

// Opens rows into a few blocks of host memory, which it takes with the first ones, as it does a stream, and uses in
// turn. Used by one thread at a time.
class OpenedRows {
 public:
  // Of a store with `options`, which quantises; what dequantises (KvQuantisation::host) outlives this.
  explicit OpenedRows(const KvStoreOptions& options);
  // Waits until nobody reads an opened row any more.
  ~OpenedRows();
  OpenedRows(const OpenedRows&) = delete;
  OpenedRows& operator=(const OpenedRows&) = delete;

  // Takes opened rows, and returns what fires, whatever with, when it reads them no more.
  using Use = absl::FunctionRef<absl::StatusOr<Event>(const KvSpan& opened)>;
  // Gives `use` the rows of `stored`, spans of the store, in their order, at most a block's at a time; waits where all
  // places are being read. The first failure ends it: use's; RESOURCE_EXHAUSTED without memory; or the device's.
  absl::Status Open(const std::vector<KvSpan>& stored, Use use);

 private:
  struct Place {
    BufferRef rows;
    Event used;
  };
  absl::Status TakeMemory();
  absl::Status OpenInto(const KvSpan& stored, const BufferRef& rows);

  const KvQuantisation how_;
  const int64_t stored_row_bytes_, row_bytes_, values_;
  std::unique_ptr<Stream> stream_;    // null before the first rows
  std::array<Place, 4> places_ = {};  // so that some are on their way while the next one is opened
  size_t next_ = 0;
};

}  // namespace runahead
