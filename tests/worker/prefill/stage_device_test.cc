// What the stage makes of a device that fails, and how long it keeps a device's memory. The model does no arithmetic.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/mutex.h"
#include "tests/testing/chain_fixture.h"
#include "tests/testing/pass_device.h"
#include "tests/testing/pass_model.h"
#include "tests/worker/prefill/held_worker.h"

namespace runahead {
namespace {

// Thread-safe.
class TableDevice final : public testing::PassDevice {
 public:
  absl::StatusOr<std::shared_ptr<const KvTable>> MakeKvTable(Stream& stream, KvLayout layout) override {
    auto table = PassDevice::MakeKvTable(stream, std::move(layout));
    MutexLock lock(mu_);
    tables_.push_back(*table);
    return table;
  }
  // Of all tables that were made, in order.
  std::vector<std::weak_ptr<const KvTable>> tables() const {
    MutexLock lock(mu_);
    return tables_;
  }

 private:
  mutable Mutex mu_;
  std::vector<std::weak_ptr<const KvTable>> tables_ RUNAHEAD_GUARDED_BY(mu_);
};

// Calls `on_section` on the stage's thread where a section of a layer is enqueued; its KV rows and logits are zeros.
class EmptyModel final : public testing::PassModel {
 public:
  static constexpr int64_t kLayers = 4;
  static constexpr int32_t kRefused = 6;  // the first token of a prompt that Embed refuses
  enum class Section { kProject, kFinish, kLogits };

  explicit EmptyModel(Device& device)
      : PassModel(kLayers, /*hidden=*/2, /*head_dim=*/2, /*vocab=*/7, /*context_length=*/1000), device_(device) {}
  std::function<void(Section, int64_t layer)> on_section = [](Section, int64_t) {};
  std::atomic<int64_t> bad_row = -1;  // of logits: they are no numbers

  absl::Status Embed(const SectionRows&, absl::Span<const int32_t> ids, const MutTensor&) const override {
    return ids[0] == kRefused ? absl::InternalError("refused") : absl::OkStatus();
  }
  absl::Status Project(const SectionRows& rows, int64_t layer, const ConstTensor&,
                       const Projection& to) const override {
    const auto own = rows.table.own_rows().subspan(rows.first, rows.count);
    device_.Call(rows.stream, [kv = to.kv, own = std::vector<int64_t>(own.begin(), own.end()), bytes = kv_row_bytes()] {
      for (const int64_t row : own) std::memset(kv.data() + row * bytes, 0, bytes);
    });
    on_section(Section::kProject, layer);
    return absl::OkStatus();
  }
  absl::Status Finish(const SectionRows&, int64_t layer, const ConstTensor&, const MutTensor&) const override {
    on_section(Section::kFinish, layer);
    return absl::OkStatus();
  }
  absl::Status Logits(const SectionRows& rows, const ConstTensor&, const MutTensor& logits) const override {
    device_.Call(rows.stream, [logits, bad = bad_row.load()] {
      std::memset(logits.ref.data(), 0, logits.ref.size);
      if (bad >= 0 && bad < logits.rows) logits.row<float>(bad)[0] = std::numeric_limits<float>::quiet_NaN();
    });
    on_section(Section::kLogits, kLayers);
    return absl::OkStatus();
  }

 private:
  Device& device_;
};

class StageDeviceTest : public ::testing::Test {
 protected:
  using Section = EmptyModel::Section;
  static constexpr int64_t kTokens = 200;
  static std::vector<int32_t> Ids() { return std::vector<int32_t>(kTokens, 3); }
  void Start(JobId job) { chain_.Start(job, 0, {0, kTokens}, Ids()); }
  void FailAt(Section section, int64_t layer) {
    model_->on_section = [=, this, left = true](Section at, int64_t of) mutable {
      if (at == section && of == layer && std::exchange(left, false)) device_->FailNextEvent();
    };
  }
  bool HandedOff(JobId job, int64_t layer) { return worker_.trace.Has(job, layer, TracePoint::kHandedOff); }
  void ExpectFailsAlone(JobId job) {
    const JobEnd end = worker_.news.AwaitEnd(job);
    EXPECT_EQ(end.status, absl::DataLossError("a kernel failed"));
    EXPECT_EQ(end.cause, JobCause::kOwn);
    EXPECT_FALSE(worker_.trace.Has(job, EmptyModel::kLayers, TracePoint::kFirstToken));
    Start(job + 1);
    EXPECT_TRUE(worker_.news.AwaitDone(job + 1).ok());
  }

  const std::shared_ptr<TableDevice> device_ = std::make_shared<TableDevice>();
  const std::shared_ptr<EmptyModel> model_ = std::make_shared<EmptyModel>(*device_);
  TestChain chain_{LoadedModel{nullptr, device_, model_}, 2, kTokens, 0, LoopbackNetwork::Delivery::kManual};
  ChainMember& worker_ = chain_.member(0);
  bool started_short_ = false;  // the stage's thread's
};

TEST_F(StageDeviceTest, KvThatFailedIsNotHandedOff) {
  FailAt(Section::kProject, 1);
  Start(1);
  ExpectFailsAlone(1);
  EXPECT_FALSE(HandedOff(1, 1));
}

TEST_F(StageDeviceTest, NoLayerFollowsOneThatFailed) {
  FailAt(Section::kFinish, 1);
  Start(1);
  ExpectFailsAlone(1);
  EXPECT_FALSE(HandedOff(1, 2)) << "it was enqueued already";
  EXPECT_FALSE(HandedOff(1, 3));
}

TEST_F(StageDeviceTest, NoTokenFollowsLogitsThatFailed) {
  FailAt(Section::kLogits, EmptyModel::kLayers);
  Start(1);
  ExpectFailsAlone(1);
}

TEST_F(StageDeviceTest, AnInterleavedPromptThatFailsInItsFirstStepEndsAlone) {
  // The tail of the long one waits for a frame.
  chain_.Start(1, 0, {0, 10, kTokens}, Ids());
  ChainMember& tail = chain_.member(1);
  tail.trace.Await(1, 0, TracePoint::kQkvEnd);
  PrefillJob refused =
      chain_.JobOf(2, 1, 0, {0, 5}, std::vector<int32_t>(5, EmptyModel::kRefused), {}, true, absl::InfiniteFuture());
  refused.interleave = true;
  tail.stage->Start(std::move(refused));
  EXPECT_EQ(tail.news.AwaitDone(2), absl::InternalError("refused"));
  EXPECT_TRUE(tail.news.times(2).interleaved);
  EXPECT_TRUE(chain_.DeliverUntil("job 1 is done", [&] { return tail.news.done(1); }));
  EXPECT_TRUE(tail.news.AwaitDone(1).ok());
}

TEST_F(StageDeviceTest, NothingLeavesAJobOnceItIsStopped) {
  model_->on_section = [this](Section section, int64_t layer) {
    if (section == Section::kFinish && layer == 0) worker_.stage->Cancel(1, absl::CancelledError("gone"));
  };
  Start(1);
  EXPECT_EQ(worker_.news.AwaitDone(1), absl::CancelledError("gone"));
  EXPECT_FALSE(worker_.trace.Has(1, EmptyModel::kLayers, TracePoint::kFirstToken));
  EXPECT_FALSE(HandedOff(1, 2));
}

TEST_F(StageDeviceTest, NothingIsInterleavedBehindTheLastLayer) {
  model_->on_section = [this](Section section, int64_t) {
    if (section != Section::kLogits || std::exchange(started_short_, true)) return;
    PrefillJob short_one = chain_.JobOf(2, 0, 0, {0, 5}, std::vector<int32_t>(5, 3), {}, true, absl::InfiniteFuture());
    short_one.interleave = true;
    worker_.stage->Start(std::move(short_one));
  };
  Start(1);
  for (const JobId job : {1, 2}) EXPECT_TRUE(worker_.news.AwaitDone(job).ok()) << job;
  EXPECT_FALSE(worker_.news.times(2).interleaved);
}

// Of one pass of three.
class TogetherOnADeviceTest : public StageDeviceTest {
 protected:
  void StartTogether() {
    for (const JobId job : {1, 2, 3}) held_.Start(held_.Job(job, std::vector<int32_t>(20, 3), {}));
  }
  HeldWorker held_{LoadedModel{nullptr, device_, model_}, kTokens};
  NewsBoard& news_ = held_.worker.news;
};

TEST_F(TogetherOnADeviceTest, OneWhoseLogitsAreNoNumbersEndsAlone) {
  StartTogether();
  model_->bad_row = 1;
  held_.Release();
  EXPECT_TRUE(news_.AwaitDone(1).ok());
  const JobEnd end = news_.AwaitEnd(2);
  EXPECT_EQ(end.status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(end.cause, JobCause::kOwn);
  EXPECT_TRUE(news_.AwaitDone(3).ok());
  EXPECT_EQ(held_.worker.memory, 0);
}

// Nobody can say over whose rows.
TEST_F(TogetherOnADeviceTest, WhatFailsThePassEndsAllOfItAndTheNextOneRuns) {
  held_.Start(held_.Job(4, std::vector<int32_t>(20, EmptyModel::kRefused), {}));
  StartTogether();
  held_.Release();
  for (const JobId job : {4, 1, 2, 3}) EXPECT_EQ(news_.AwaitDone(job), absl::InternalError("refused")) << job;
  held_.Start(held_.Job(5, Ids(), {}));
  EXPECT_TRUE(news_.AwaitDone(5).ok());
  EXPECT_EQ(held_.worker.memory, 0);
}

// Links and hand-off end a job on threads of theirs, where nothing of a device may be given back.
TEST_F(StageDeviceTest, APassThatIsOverKeepsNothingOfTheDeviceForItsHandOff) {
  chain_.handoff().Block();
  Start(1);
  worker_.news.AwaitFirstToken(1);
  const auto tables = device_->tables();  // of the first job's pass, and of the rows that it kept
  EXPECT_EQ(tables.size(), 2u);
  Start(2);
  worker_.news.AwaitFirstToken(2);  // the stage is through with the first one
  EXPECT_FALSE(worker_.news.done(1));
  for (const auto& table : tables) EXPECT_TRUE(table.expired());
}

}  // namespace
}  // namespace runahead
