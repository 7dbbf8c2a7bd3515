// What a chain leaves in the decode worker's store: to the bit what its workers made, whatever the way there; and by
// the rule of f32 what one worker alone leaves there. Not to the bit: a part's attention adds up in another order.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/chain_fixture.h"
#include "tests/testing/exactness.h"
#include "tests/testing/metric_values.h"
#include "tests/testing/small_model.h"
#include "tests/testing/stored_kv.h"
#include "tests/testing/test_device.h"
#include "tests/testing/windowed_model.h"
#include "tests/worker/link/new_engine.h"
#include "worker/handoff/in_process_handoff.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/slice_sender.h"

namespace runahead {
namespace {

using ::runahead::testing::NewEngine;

constexpr int64_t kTokens = 600;  // in three blocks of the store

struct Way {
  const char* name;
  bool in_process;
  DType dtype;
};

class ChainStore : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    RUNAHEAD_NEED_TEST_DEVICE(GetParam().dtype);
    loaded_ = LoadForTest(WriteSynthetic(SmallModel(), "chain_store"), GetParam().dtype, 2);
    MakeStore();
  }

  // For loaded_, in place of the one before.
  void MakeStore() {
    sender_.reset();
    from_engine_.reset();
    receiver_.reset();
    KvStoreOptions options{layers(), row_bytes(), 16 * kKvBlockTokens, 5};
    options.windows = loaded_.model->windows();
    options.x_row_bytes = x_row_bytes();
    options.x_form = FormOf(GetParam().dtype);
    store_ = *KvStore::Create(options, *loaded_.device, RealClock());
    receiver_ = std::make_unique<SliceReceiver>(*store_, SliceReceiverOptions{.kv_form = FormOf(GetParam().dtype)});
    std::shared_ptr<SliceTransport> transport;
    if (GetParam().in_process) {
      transport = MakeInProcessTransport(*receiver_);
    } else {
      decode_engine_ = NewEngine();
      from_engine_ = std::make_unique<MessageHandoffReceiver>(*decode_engine_, *receiver_);
      prefill_engine_ = NewEngine();
      transport = MakeMessageSliceTransport(*prefill_engine_);
    }
    sender_ = std::make_unique<SliceSender>(std::move(transport), CountedBy(metrics_));
    // Blocks that are free lie apart.
    std::vector<LeaseId> leases;
    for (int i = 0; i < 16; ++i)
      leases.push_back(*store_->Reserve({.prompt_tokens = 1, .total_tokens = kKvBlockTokens}));
    for (int i = 0; i < 16; i += 2) store_->Release(leases[i]);
  }

  int64_t layers() const { return loaded_.model->config().layers; }
  int64_t row_bytes() const { return loaded_.model->kv_row_bytes(); }
  int64_t x_row_bytes() const {
    return loaded_.model->config().hidden * static_cast<int64_t>(DTypeSize(GetParam().dtype));
  }
  double Bytes(const char* kind) {
    return testing::Value(registry_, absl::StrCat("runahead_handoff_bytes_total{kind=\"", kind, "\"}"));
  }

  // The store's bytes after a chain, a layer each; they are what its workers handed off. With X the lease takes that,
  // too.
  std::vector<std::string> Stored(const std::vector<int64_t>& bounds, const std::vector<int32_t>& ids,
                                  Schedule schedule, bool with_x = false) {
    const int parts = static_cast<int>(bounds.size()) - 1;
    TestChain chain(loaded_, parts, 3 * kTokens);
    chain.handoff().PassTo(*sender_);
    const LeaseId lease = *store_->Reserve({.prompt_tokens = kTokens, .total_tokens = kTokens + 40, .with_x = with_x});
    for (int part = 0; part < parts; ++part) {
      PrefillJob job =
          chain.JobOf(1, 0, part, bounds, ids, EveryLogprob(loaded_), true, absl::InfiniteFuture(), schedule);
      job.lease = lease;
      job.x_tokens = with_x ? kTokens : 0;
      if (decode_engine_ != nullptr) job.decode = decode_engine_->self();
      chain.member(part).stage->Start(std::move(job));
    }
    for (int part = 0; part < parts; ++part) {
      const absl::Status done = chain.member(part).news.AwaitDone(1);
      EXPECT_TRUE(done.ok()) << "part " << part << ": " << done;
    }
    const StoredKv stored(*store_, lease);
    EXPECT_EQ(stored.has_x(), with_x);
    std::vector<std::string> bytes;
    for (int64_t layer = 0; layer < layers(); ++layer) {
      const int64_t seen = SeenFrom(layer);
      bytes.push_back(stored.Bytes(layer, seen, kTokens));
      EXPECT_TRUE(bytes.back() == chain.handoff().Layer(lease, layer, seen, kTokens, row_bytes())) << "layer " << layer;
      if (!with_x) continue;
      EXPECT_TRUE(stored.Bytes(layer, seen, kTokens, SliceKind::kX) ==
                  chain.handoff().Layer(lease, layer, seen, kTokens, x_row_bytes(), SliceKind::kX))
          << "layer " << layer;
    }
    return bytes;
  }

  // The first token of the prompt that decode sees in the layer.
  int64_t SeenFrom(int64_t layer) const {
    const int64_t window = loaded_.model->attention(layer).window;
    return window == 0 ? 0 : std::max<int64_t>(0, kTokens + 1 - window);
  }

  LoadedModel loaded_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<SliceReceiver> receiver_;
  std::unique_ptr<MessageEngine> decode_engine_, prefill_engine_;  // null: in one process
  std::unique_ptr<MessageHandoffReceiver> from_engine_;
  MetricRegistry registry_{"none"};
  PrefillMetrics metrics_{registry_};
  std::unique_ptr<HandoffSender> sender_;
};

TEST_P(ChainStore, HoldsWhatTheWorkersMadeAndWhatOneWorkerLeaves) {
  const std::vector<int32_t> ids = RandomIds(kTokens, 320, 31);
  const std::vector<std::string> single = Stored({0, kTokens}, ids, Schedule::kKvr);
  const ExpectedRun plain = PlainRun(loaded_, ids);
  const bool f32 = GetParam().dtype == DType::kF32;
  for (int64_t layer = 0; f32 && layer < layers(); ++layer) {
    ExpectRows(Floats(single[layer]), plain.kv[layer], plain.kv_dim);
  }
  for (const Schedule schedule : {Schedule::kKvr, Schedule::kTsp, Schedule::kTspCausal}) {
    for (const std::vector<int64_t>& bounds :
         std::vector<std::vector<int64_t>>{{0, 250, kTokens}, {0, 1, 257, kTokens}, {0, 300, 512, 599, kTokens}}) {
      SCOPED_TRACE(::testing::PrintToString(bounds));
      const std::vector<std::string> stored = Stored(bounds, ids, schedule);
      for (int64_t layer = 0; f32 && layer < layers(); ++layer) {
        SCOPED_TRACE(layer);
        ExpectRows(Floats(stored[layer]), Doubles(Floats(single[layer])), plain.kv_dim);
      }
    }
  }
}

TEST_P(ChainStore, HoldsXBesideKvWhereTheLeaseTakesIt) {
  const std::vector<int32_t> ids = RandomIds(kTokens, 320, 32);
  const std::vector<int64_t> bounds = {0, 250, 301, kTokens};
  const std::vector<std::string> without = Stored(bounds, ids, Schedule::kKvr);
  EXPECT_EQ(Bytes("x"), 0);
  EXPECT_EQ(Bytes("kv"), layers() * kTokens * row_bytes());
  EXPECT_TRUE(Stored(bounds, ids, Schedule::kKvr, /*with_x=*/true) == without) << "KV is the same";
  EXPECT_EQ(Bytes("x"), layers() * kTokens * x_row_bytes());
  EXPECT_EQ(Bytes("kv"), 2 * layers() * kTokens * row_bytes());
}

// Members whose part a layer's window hides hand nothing of it off, and the lease is complete all the same.
TEST_P(ChainStore, HoldsOfALayerWithAWindowWhatDecodeSees) {
  const std::vector<int32_t> ids = RandomIds(kTokens, 320, 33);
  const std::vector<int64_t> windows = {0, 100, 301, 1};
  loaded_.model = std::make_shared<WindowedModel>(loaded_.model, windows);
  MakeStore();
  const int64_t rows = kTokens + 99 + 300 + 0;
  for (const std::vector<int64_t>& bounds : std::vector<std::vector<int64_t>>{{0, 600}, {0, 250, 301, 600}}) {
    SCOPED_TRACE(::testing::PrintToString(bounds));
    const double kv = Bytes("kv"), x = Bytes("x");
    const std::vector<std::string> stored = Stored(bounds, ids, Schedule::kKvr, /*with_x=*/true);
    EXPECT_EQ(Bytes("kv") - kv, rows * row_bytes());
    EXPECT_EQ(Bytes("x") - x, rows * x_row_bytes());
    if (GetParam().dtype != DType::kF32) continue;
    const ExpectedRun plain = PlainRun(loaded_, ids);
    for (int64_t layer = 0; layer < layers(); ++layer) {
      SCOPED_TRACE(layer);
      ExpectRows(Floats(stored[layer]),
                 absl::MakeConstSpan(plain.kv[layer]).subspan(SeenFrom(layer) * 2 * plain.kv_dim), plain.kv_dim);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, ChainStore,
                         ::testing::Values(Way{"InProcess", true, DType::kF32}, Way{"Tcp", false, DType::kF32},
                                           Way{"TcpBf16", false, DType::kBF16}),
                         [](const auto& way) { return std::string(way.param.name); });

}  // namespace
}  // namespace runahead
