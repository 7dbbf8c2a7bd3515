// What lies in a decode worker's store.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "worker/handoff/slice.h"
#include "worker/kv/store.h"

namespace runahead {

// The prompt of a lease, read as decode would, which makes the lease's copies first. The lease ends with it.
class StoredKv {
 public:
  // Fails the test where the lease is not complete.
  StoredKv(KvStore& store, const LeaseId& lease) : store_(store), opened_(store.Open(lease)) {
    EXPECT_TRUE(opened_.ok()) << opened_.status();
    RUNAHEAD_CHECK(opened_.ok());
    for (const CopyPart& part : opened_->Copies()) std::memcpy(part.to.data(), part.from.data(), part.to.size);
    opened_->EndCopies();
  }

  bool has_x() const { return opened_->has_x(); }
  // Bytes of tokens [begin, end) of a layer, of its KV or its X.
  std::string Bytes(int64_t layer, int64_t begin, int64_t end, SliceKind kind = SliceKind::kKv) const {
    std::string bytes;
    for (const BufferRef& row : Rows(layer, begin, end, kind)) {
      bytes.append(reinterpret_cast<const char*>(row.data()), row.size);
    }
    return bytes;
  }
  // Their hash, as hand-off makes it.
  uint64_t Hash(int64_t layer, int64_t begin, int64_t end) const {
    return SumPieces(/*seed=*/0, Rows(layer, begin, end, SliceKind::kKv));
  }

 private:
  std::vector<BufferRef> Rows(int64_t layer, int64_t begin, int64_t end, SliceKind kind) const {
    const KvArena& arena = kind == SliceKind::kKv ? store_.arena() : *store_.x_arena();
    std::vector<BufferRef> rows;
    for (const KvSpan& span : arena.Spans(opened_->blocks(), layer, begin, end)) rows.push_back(span.rows);
    return rows;
  }

  const KvStore& store_;
  absl::StatusOr<KvStore::Sequence> opened_;
};

// Values of an f32 store's bytes.
inline std::vector<float> Floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace runahead
