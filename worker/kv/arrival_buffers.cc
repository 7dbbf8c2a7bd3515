#include "worker/kv/arrival_buffers.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "worker/kv/block_pool.h"

namespace runahead {
namespace {

BounceBuffer::Move QuantiseBy(const KvStoreOptions& options) {
  return {options.stored_row_bytes(), [how = *options.quantisation, columns = options.row_values(),
                                       row_bytes = static_cast<size_t>(options.row_bytes)](
                                          Stream& stream, const ConstBufferRef& from, const BufferRef& to) {
            const Tensor rows = MakeTensor(from, how.dtype, static_cast<int64_t>(from.size / row_bytes), columns);
            return how.host->QuantizeKv(stream, rows, how.quant, to);
          }};
}

// X that arrives in a dtype.
BounceBuffer::Move QuantiseXBy(const KvStoreOptions& options) {
  return {options.x_row_bytes,
          [how = *options.x_quantisation, quant = QuantOf(options.x_form), row_bytes = options.arriving_x_row_bytes()](
              Stream& stream, const ConstBufferRef& from, const BufferRef& to) {
            const auto rows = static_cast<int64_t>(from.size) / row_bytes;
            return how.host->QuantizeKv(stream, MakeTensor(from, DTypeOf(how.arrives), rows, how.columns), quant, to);
          }};
}

// X that arrives quantised: what its codes stand for, a block of tokens at a time.
absl::StatusOr<BounceBuffer::Move> RequantiseXBy(const KvStoreOptions& options) {
  const XQuantisation how = *options.x_quantisation;
  RUNAHEAD_ASSIGN_OR_RETURN(
      std::shared_ptr<Buffer> memory,
      how.host->Allocate(static_cast<size_t>(kKvBlockTokens * how.columns) * sizeof(float), MemoryKind::kHost));
  const Tensor read = MakeTensor(BufferRef::Whole(std::move(memory)), DType::kF32, kKvBlockTokens, how.columns);
  const auto move = [how, quant = QuantOf(options.x_form), read, from_row = options.arriving_x_row_bytes(),
                     to_row = options.x_row_bytes](Stream& stream, const ConstBufferRef& from,
                                                   const BufferRef& to) -> absl::Status {
    const int64_t rows = static_cast<int64_t>(from.size) / from_row;
    for (int64_t first = 0; first < rows; first += kKvBlockTokens) {
      const int64_t count = std::min(kKvBlockTokens, rows - first);
      const auto slice = [&](const auto& ref, int64_t row_bytes) {
        return ref.Slice(static_cast<size_t>(first * row_bytes), static_cast<size_t>(count * row_bytes));
      };
      RUNAHEAD_RETURN_IF_ERROR(
          how.host->DequantizeKv(stream, slice(from, from_row), QuantOf(how.arrives), read.Rows(0, count)));
      RUNAHEAD_RETURN_IF_ERROR(how.host->QuantizeKv(stream, read.Rows(0, count), quant, slice(to, to_row)));
    }
    return absl::OkStatus();
  };
  return BounceBuffer::Move{options.x_row_bytes, move};
}

absl::StatusOr<std::unique_ptr<BounceBuffer>> MakeKvBuffer(const KvStoreOptions& options, Device& device,
                                                           int64_t store_blocks) {
  const bool quantises = options.quantisation.has_value();
  const bool reaches = options.tier == MemoryKind::kHost || device.host_reads_device_memory();
  if (reaches && !quantises) return nullptr;
  const int64_t block_bytes = kKvBlockTokens * options.row_bytes;
  const int64_t blocks = options.bounce_bytes == 0 ? store_blocks : options.bounce_bytes / block_bytes;
  if (blocks < store_blocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "slices reach a store in device memory through %d bytes of host memory, and one slice may be as "
        "large as a layer of the store, which has %d bytes",
        options.bounce_bytes, store_blocks * block_bytes));
  }
  if (quantises) {
    return BounceBuffer::Create(*options.quantisation->host, blocks, options.row_bytes, QuantiseBy(options));
  }
  return BounceBuffer::Create(device, blocks, options.row_bytes, BounceBuffer::CopyBy(device, options.row_bytes));
}

}  // namespace

int64_t KvStoreOptions::stored_row_bytes() const {
  if (!quantisation.has_value()) return row_bytes;
  return static_cast<int64_t>(KvQuantRowBytes(row_values(), quantisation->quant));
}

int64_t KvStoreOptions::row_values() const {
  return row_bytes / static_cast<int64_t>(DTypeSize(quantisation->dtype));
}

int64_t KvStoreOptions::arriving_x_row_bytes() const {
  if (!x_quantisation.has_value()) return x_row_bytes;
  return RowFormBytes(x_quantisation->arrives, x_quantisation->columns);
}

RowForm KvStoreOptions::arriving_x_form() const {
  return x_quantisation.has_value() ? x_quantisation->arrives : x_form;
}

absl::Status CheckQuantisation(const KvStoreOptions& options) {
  if (const auto& x = options.x_quantisation; x.has_value()) {
    if (x->host == nullptr || !IsQuantised(options.x_form) || x->columns % QuantOf(options.x_form).group != 0 ||
        options.x_row_bytes != RowFormBytes(options.x_form, x->columns)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("X of %d values cannot be kept in %d bytes a row, in %s: q4, q8 and q16 work, where a row is "
                          "whole groups of 32",
                          x->columns, options.x_row_bytes, std::string(RowFormName(options.x_form))));
    }
  }
  if (!options.quantisation.has_value()) return absl::OkStatus();
  const KvQuant& quant = options.quantisation->quant;
  if (options.tier == MemoryKind::kHost && options.quantisation->host != nullptr &&
      (quant.bits == 4 || quant.bits == 8) && quant.group > 0 && options.row_values() % quant.group == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("KV of %d bytes a row cannot be kept in %d bits by groups of %d: 4 and 8 bits work, in host "
                      "memory, where a row is whole groups",
                      options.row_bytes, quant.bits, quant.group));
}

absl::StatusOr<ArrivalBuffers> MakeArrivalBuffers(const KvStoreOptions& options, Device& device, int64_t store_blocks) {
  ArrivalBuffers made;
  RUNAHEAD_ASSIGN_OR_RETURN(made.kv, MakeKvBuffer(options, device, store_blocks));
  if (options.x_row_bytes == 0 || !options.x_quantisation.has_value()) return made;
  BounceBuffer::Move move;
  if (IsQuantised(options.x_quantisation->arrives)) {
    RUNAHEAD_ASSIGN_OR_RETURN(move, RequantiseXBy(options));
  } else {
    move = QuantiseXBy(options);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(made.x, BounceBuffer::Create(*options.x_quantisation->host, store_blocks,
                                                         options.arriving_x_row_bytes(), std::move(move)));
  return made;
}

}  // namespace runahead
