// Sequences with made-up KV, and a loop that takes any number of their next rows in a step. Two worlds of the same
// prompts hold the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/model_fixture.h"
#include "tests/worker/decode/made_up_kv.h"
#include "worker/decode/step_loop.h"
#include "worker/kv/store.h"

namespace runahead {

// The next `count` rows of a sequence; `wanted` says of which logits are wanted, and empty of all.
struct NextRows {
  size_t sequence = 0;
  int64_t count = 1;
  std::vector<bool> wanted = {};
};

class RowsWorld {
 public:
  using MakeLoop = std::function<std::unique_ptr<StepLoop>(const LoadedModel& loaded, const KvStore& store, Stream&)>;

  // Each sequence takes `rows` rows at most.
  RowsWorld(const LoadedModel& loaded, const std::vector<int64_t>& prompts, int64_t rows, const MakeLoop& make_loop)
      : memory_(loaded.device), vocab_(loaded.model->config().vocab) {
    KvStoreOptions options{.layers = loaded.model->config().layers, .row_bytes = loaded.model->kv_row_bytes()};
    for (const int64_t prompt : prompts) options.capacity_tokens += KvBlocksFor(prompt + rows) * kKvBlockTokens;
    store_ = *KvStore::Create(options, *loaded.device, RealClock());
    for (const int64_t prompt : prompts) {
      const LeaseId lease = *store_->Reserve({.prompt_tokens = prompt, .total_tokens = prompt + rows});
      FillPrompt(*store_, lease, prompt, loaded.model->kv_dtype());
      sequences_.push_back(*store_->Open(lease));
      positions_.push_back(prompt);
    }
    loop_ = make_loop(loaded, *store_, memory_.stream());
  }
  ~RowsWorld() {
    for (const KvStore::Sequence& sequence : sequences_) loop_->Leave(sequence);
  }

  absl::StatusOr<Tensor> Try(const std::vector<NextRows>& step) {
    std::vector<DecodeRow> rows;
    for (const NextRows& next : step) {
      for (int64_t i = 0; i < next.count; ++i) {
        const int64_t position = positions_[next.sequence] + i;
        rows.push_back({.sequence = &sequences_[next.sequence],
                        .token = static_cast<int32_t>((7 * next.sequence + 31 * position) % vocab_),
                        .position = position,
                        .wants_logits = next.wanted.empty() || next.wanted[i]});
      }
    }
    return loop_->Step(rows);
  }
  // The logits that are wanted, in the order of the rows.
  std::vector<std::vector<float>> Step(const std::vector<NextRows>& step) {
    const absl::StatusOr<Tensor> logits = Try(step);
    EXPECT_TRUE(logits.ok()) << logits.status();
    memory_.Finish();
    std::vector<std::vector<float>> values;
    for (int64_t row = 0; logits.ok() && row < logits->rows; ++row) {
      values.push_back(memory_.Read(logits->Rows(row, 1)));
    }
    for (const NextRows& next : step) positions_[next.sequence] += next.count;
    return values;
  }

  // The bytes that the store has of a sequence's KV in a layer.
  std::vector<std::byte> Stored(size_t sequence, int64_t layer) {
    std::vector<std::byte> bytes;
    for (const KvSpan& span : store_->arena().Spans(sequences_[sequence].blocks(), layer, 0, positions_[sequence])) {
      const std::vector<std::byte> more = memory_.ReadBytes(span.rows);
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    return bytes;
  }

 private:
  DeviceMemory memory_;
  const int64_t vocab_;
  std::unique_ptr<KvStore> store_;
  std::vector<KvStore::Sequence> sequences_;  // end before the store does
  std::vector<int64_t> positions_;            // of their next rows
  std::unique_ptr<StepLoop> loop_;
};

}  // namespace runahead
