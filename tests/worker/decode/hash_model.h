// A model without arithmetic: the logits of a row are a hash of all KV rows that attention shows it, so a wrong,
// missing or foreign row of any layer changes the tokens. What it must say is known from the ids alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tests/testing/pass_model.h"
#include "tests/testing/sampling_device.h"
#include "worker/kv/store.h"

namespace runahead::testing {

inline constexpr int64_t kHashRowBytes = 16;

// Goes on with `hash` over a KV row of the model.
inline uint64_t HashRow(const std::byte* row, uint64_t hash) {
  for (int i = 0; i < kHashRowBytes; ++i) hash = (hash ^ static_cast<uint64_t>(row[i])) * 0x100000001b3u + 0x9e37;
  return hash ^ (hash >> 29);
}

// Its attention goes on with the hash in a row of q over the KV rows that the query sees: of a query by pieces one
// piece, merged as it is. A prompt's rows give the same.
class HashDevice final : public SamplingDevice {
 public:
  absl::StatusOr<std::shared_ptr<const KvTable>> MakeKvTable(Stream&, KvLayout layout) override {
    return std::make_shared<Table>(std::move(layout));
  }
  absl::Status AttendPieces(Stream& stream, const ConstTensor& q, const AttentionShape&, const KvTable& table,
                            const ConstBufferRef& layer, const MutTensor& partials) override {
    RUNAHEAD_CHECK(table.layout().has_pieces());
    HashRows(stream, q, table, layer, partials);
    return absl::OkStatus();
  }
  absl::Status Attention(Stream& stream, const ConstTensor& q, const AttentionShape&, const KvTable& table,
                         const ConstBufferRef& layer, const MutTensor& out) override {
    RUNAHEAD_CHECK(table.layout().of_prompts);
    HashRows(stream, q, table, layer, out);
    return absl::OkStatus();
  }
  absl::Status GatherRows(Stream& stream, const ConstTensor& x, std::vector<int32_t> rows,
                          const MutTensor& out) override {
    Call(stream, [x, out, rows = std::move(rows)] {
      for (size_t i = 0; i < rows.size(); ++i) {
        std::memcpy(out.row<float>(static_cast<int64_t>(i)), x.row<float>(rows[i]), x.cols * sizeof(float));
      }
    });
    return absl::OkStatus();
  }
  absl::Status MergePieces(Stream& stream, const ConstTensor& partials, const AttentionShape&, const KvTable&,
                           const MutTensor& out) override {
    Call(stream, [partials, out] {
      for (int64_t row = 0; row < out.rows; ++row) {
        std::memcpy(out.row<float>(row), partials.row<float>(row), sizeof(uint64_t));
      }
    });
    return absl::OkStatus();
  }

 private:
  // A piece for each query.
  class Table final : public KvTable {
   public:
    explicit Table(KvLayout layout) : Table(layout, QueriesOf(layout)) {}

   private:
    Table(const KvLayout& layout, int64_t queries) : KvTable(layout, queries) {}
    static int64_t QueriesOf(const KvLayout& layout) {
      int64_t queries = 0;
      for (const KvSequence& sequence : layout.sequences) queries += sequence.queries;
      return queries;
    }
  };

  void HashRows(Stream& stream, const ConstTensor& q, const KvTable& table, const ConstBufferRef& layer,
                const MutTensor& to) {
    Call(stream, [q, layout = table.layout(), layer, to] {
      int64_t row = 0;
      for (const KvSequence& sequence : layout.sequences) {
        for (int64_t length = sequence.length - sequence.queries + 1; length <= sequence.length; ++length, ++row) {
          uint64_t hash = 0;
          std::memcpy(&hash, q.row<float>(row), sizeof(hash));
          for (int64_t at = 0; at < length; ++at) {
            hash = HashRow(layer.data() + layout.RowOf(sequence, at) * kHashRowBytes, hash);
          }
          std::memcpy(to.row<float>(row), &hash, sizeof(hash));
        }
      }
    });
  }
};

// A head is a hash.
class HashModel final : public PassModel {
 public:
  static constexpr int64_t kLayers = 3;
  static constexpr int64_t kVocab = 61;
  static constexpr int32_t kPoison = 60;  // as an input token it makes the logits NaN

  explicit HashModel(HashDevice& device)
      : PassModel(kLayers, sizeof(State) / sizeof(float), /*head_dim=*/2, kVocab, /*context_length=*/2000),
        device_(device) {}

  // Called on the thread that enqueues a pass, before it; set it before the model is used.
  std::function<void()> on_pass;
  // Computed as a prompt's.
  mutable std::atomic<int64_t> prompt_rows{0};
  // Passes over rows at `positions` fail where this says so, once their first layers have been enqueued: what they
  // wrote there stays.
  std::function<absl::Status(absl::Span<const int32_t> positions)> fail;

  absl::Status Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const override {
    if (on_pass) on_pass();
    RUNAHEAD_CHECK(rows.batch_invariant != rows.table.layout().of_prompts);
    if (!rows.batch_invariant) prompt_rows += rows.count;
    device_.Call(rows.stream, [x, ids = std::vector<int32_t>(ids.begin(), ids.end())] {
      for (int64_t row = 0; row < x.rows; ++row) Put({0, ids[row], 0}, x, row);
    });
    return absl::OkStatus();
  }
  absl::Status Project(const SectionRows& rows, int64_t layer, const ConstTensor& x,
                       const Projection& to) const override {
    const auto own = rows.table.own_rows().subspan(rows.first, rows.count);
    device_.Call(rows.stream, [x, to, layer, at = std::vector<int64_t>(own.begin(), own.end()),
                               positions = std::vector<int32_t>(rows.positions().begin(), rows.positions().end())] {
      for (int64_t row = 0; row < x.rows; ++row) {
        const State state = Get(x, row);
        WriteRow(to.kv.data() + at[row] * kHashRowBytes, layer, positions[row], state.id);
        std::memcpy(to.q.row<float>(row), &state.hash, sizeof(state.hash));
      }
    });
    return absl::OkStatus();
  }
  absl::Status Finish(const SectionRows& rows, int64_t layer, const ConstTensor& attended,
                      const MutTensor& x) const override {
    device_.Call(rows.stream, [attended, x] {
      for (int64_t row = 0; row < x.rows; ++row) {
        State state = Get(x, row);
        std::memcpy(&state.hash, attended.row<float>(row), sizeof(state.hash));
        Put(state, x, row);
      }
    });
    return fail && layer == 1 ? fail(rows.positions()) : absl::OkStatus();
  }
  absl::Status Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const override {
    device_.Call(rows.stream, [x, logits] {
      for (int64_t row = 0; row < x.rows; ++row) {
        const State state = Get(x, row);
        FillLogits(state.hash, state.id, logits.row<float>(row));
      }
    });
    return absl::OkStatus();
  }

  // One row of the store: a function of where it is and which token it is of.
  static void WriteRow(std::byte* row, int64_t layer, int64_t position, int32_t id) {
    const int32_t values[4] = {static_cast<int32_t>(layer), static_cast<int32_t>(position), id, 77};
    std::memcpy(row, values, sizeof(values));
  }

  // The logits after `ids`, as any right run of the model gives them.
  static std::vector<float> Expected(const std::vector<int32_t>& ids) {
    uint64_t hash = 0;
    std::byte row[16];
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (size_t position = 0; position < ids.size(); ++position) {
        WriteRow(row, layer, static_cast<int64_t>(position), ids[position]);
        hash = HashRow(row, hash);
      }
    }
    std::vector<float> logits(kVocab);
    FillLogits(hash, ids.back(), logits.data());
    return logits;
  }

 private:
  // A row of the residual stream.
  struct State {
    uint64_t hash;
    int32_t id;
    int32_t unused;
  };
  static State Get(const ConstTensor& x, int64_t row) {
    State state;
    std::memcpy(&state, x.row<float>(row), sizeof(state));
    return state;
  }
  static void Put(const State& state, const MutTensor& x, int64_t row) {
    std::memcpy(x.row<float>(row), &state, sizeof(state));
  }
  static void FillLogits(uint64_t hash, int32_t id, float* logits) {
    for (int64_t v = 0; v < kVocab; ++v) {
      hash = hash * 6364136223846793005u + 1442695040888963407u;
      logits[v] = static_cast<float>(hash >> 40) / static_cast<float>(1 << 22);
      if (v == kPoison) logits[v] = -10;  // never drawn by accident
      if (id == kPoison) logits[v] = std::numeric_limits<float>::quiet_NaN();
    }
  }

  HashDevice& device_;
};

}  // namespace runahead::testing
