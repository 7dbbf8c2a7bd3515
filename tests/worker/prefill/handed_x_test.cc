// X beside KV: what of it the members of a chain hand off, when, and how many bytes that is.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/chain_fixture.h"
#include "tests/testing/exactness.h"
#include "tests/testing/reference_kv_quant.h"
#include "tests/testing/small_model.h"
#include "tests/testing/stored_kv.h"
#include "tests/testing/test_device.h"
#include "worker/format/open_model.h"
#include "worker/model/layer_pass.h"

namespace runahead {
namespace {

// A model that keeps what its Project leaves as X, by layer and position. On a device whose memory the host reads.
class XKeepingModel final : public Model {
 public:
  XKeepingModel(std::shared_ptr<const Model> model, Device& device) : model_(std::move(model)), device_(device) {}
  const ModelConfig& config() const override { return model_->config(); }
  LayerMatrices Matrices(int64_t layer) const override { return model_->Matrices(layer); }
  std::vector<std::shared_ptr<const Weights>> Tables() const override { return model_->Tables(); }
  const AttentionShape& attention(int64_t layer) const override { return model_->attention(layer); }
  absl::Status Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const override {
    return model_->Embed(rows, ids, x);
  }
  absl::Status Project(const SectionRows& rows, int64_t layer, const ConstTensor& x,
                       const Projection& to) const override {
    RUNAHEAD_RETURN_IF_ERROR(model_->Project(rows, layer, x, to));
    if (to.normed.ref.buffer == nullptr) return absl::OkStatus();
    const std::vector<int32_t> positions(rows.positions().begin(), rows.positions().end());
    device_.Call(rows.stream, [this, layer, positions, bytes = to.normed.ref] {
      MutexLock lock(mu_);
      const size_t row = bytes.size / positions.size();
      const char* from = reinterpret_cast<const char*>(bytes.data());
      for (size_t i = 0; i < positions.size(); ++i) kept_[{layer, positions[i]}] = std::string(from + i * row, row);
    });
    return absl::OkStatus();
  }
  absl::Status Recompute(const SectionRows& rows, int64_t layer, const ConstTensor& normed,
                         const BufferRef& kv) const override {
    return model_->Recompute(rows, layer, normed, kv);
  }
  absl::Status Finish(const SectionRows& rows, int64_t layer, const ConstTensor& attended,
                      const MutTensor& x) const override {
    return model_->Finish(rows, layer, attended, x);
  }
  absl::Status Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const override {
    return model_->Logits(rows, x, logits);
  }

  // X of positions [0, tokens) that are there.
  std::string Kept(int64_t layer, int64_t tokens) const {
    MutexLock lock(mu_);
    std::string bytes;
    for (int64_t position = 0; position < tokens; ++position) {
      const auto found = kept_.find({layer, static_cast<int32_t>(position)});
      if (found != kept_.end()) bytes += found->second;
    }
    return bytes;
  }
  size_t kept() const {
    MutexLock lock(mu_);
    return kept_.size();
  }

 private:
  const std::shared_ptr<const Model> model_;
  Device& device_;
  mutable Mutex mu_;
  mutable std::map<std::pair<int64_t, int32_t>, std::string> kept_ RUNAHEAD_GUARDED_BY(mu_);
};

struct HowRun {
  DType dtype;
  Schedule schedule;
};

class HandedXTest : public ::testing::TestWithParam<HowRun> {
 protected:
  static constexpr int64_t kTokens = 700;  // in several chunks

  void SetUp() override {
    RUNAHEAD_NEED_TEST_DEVICE(GetParam().dtype);
    loaded_ = LoadForTest(WriteSynthetic(SmallModel(), "handed_x"), GetParam().dtype, 2);
    model_ = std::make_shared<XKeepingModel>(loaded_.model, *loaded_.device);
    keeping_ = {loaded_.file, loaded_.device, model_};
    ids_ = RandomIds(kTokens, 320, 41);
  }

  int64_t layers() const { return model_->config().layers; }
  int64_t x_row_bytes() const {
    return model_->config().hidden * static_cast<int64_t>(DTypeSize(loaded_.device->compute_dtype()));
  }
  void Start(TestChain& chain, JobId id, const std::vector<int64_t>& bounds, int64_t x_tokens, int64_t kv_from = 0) {
    for (int part = 0; part + 1 < static_cast<int>(bounds.size()); ++part) {
      PrefillJob job = chain.JobOf(id, 0, part, bounds, ids_, EveryLogprob(loaded_), true, absl::InfiniteFuture(),
                                   GetParam().schedule);
      job.x_tokens = x_tokens;
      job.kv_from = kv_from;
      chain.member(part).stage->Start(std::move(job));
    }
  }
  static std::string XOf(TestChain& chain, JobId job, int64_t layer, int64_t tokens, int64_t row_bytes) {
    return chain.handoff().Layer(TestChain::Lease(job), layer, 0, tokens, row_bytes, SliceKind::kX);
  }

  // By one pass over plain buffers, a layer each.
  std::vector<std::string> PlainX() {
    DeviceMemory memory(loaded_.device);
    ForwardScratch own(*loaded_.device), shared(*loaded_.device);
    const BufferRef kv =
        BufferRef::Whole(*loaded_.device->Allocate(kTokens * model_->kv_row_bytes(), MemoryKind::kDevice));
    const Tensor x = memory.Empty(kTokens, model_->config().hidden, loaded_.device->compute_dtype());
    ForwardBatch batch{.ids = ids_, .kv = KvLayout::OnePage(kTokens, kTokens), .logit_rows = {kTokens - 1}};
    LayerPass pass(*loaded_.model, *loaded_.device, memory.stream(), {own, shared}, std::move(batch));
    EXPECT_TRUE(pass.Begin().ok());
    std::vector<std::string> layers;
    for (int64_t layer = 0; layer < model_->config().layers; ++layer) {
      EXPECT_TRUE(pass.Project(layer, kv, {x.ref, FormOf(x.dtype), x.cols}).ok());
      const std::vector<std::byte> bytes = memory.ReadBytes(x.ref);
      layers.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      EXPECT_TRUE(pass.Attend(layer, kv).ok());
    }
    memory.Finish();
    return layers;
  }

  LoadedModel loaded_, keeping_;
  std::shared_ptr<const XKeepingModel> model_;
  std::vector<int32_t> ids_;
};

TEST_P(HandedXTest, IsToTheBitWhatProjectLeavesAndWhatOneWorkerAloneHas) {
  const std::vector<std::string> plain = PlainX();
  for (const std::vector<int64_t>& bounds :
       std::vector<std::vector<int64_t>>{{0, kTokens}, {0, 450, kTokens}, {0, 1, 299, kTokens}}) {
    SCOPED_TRACE(::testing::PrintToString(bounds));
    const int parts = static_cast<int>(bounds.size()) - 1;
    TestChain chain(keeping_, parts, 3 * kTokens, kMinLayerSlots);  // X takes memory, too
    Start(chain, 1, bounds, kTokens);
    AwaitWhole(loaded_, chain, 1, 0, bounds);
    for (int64_t layer = 0; layer < layers(); ++layer) {
      SCOPED_TRACE(absl::StrCat("layer ", layer));
      const std::string handed = XOf(chain, 1, layer, kTokens, x_row_bytes());
      EXPECT_TRUE(handed == model_->Kept(layer, kTokens));
      // A part's attention adds up in another order: behind it only one part is to the bit what one pass is.
      if (parts == 1 || layer == 0) {
        EXPECT_TRUE(handed == plain[layer]);
      } else if (GetParam().dtype == DType::kF32) {
        ExpectRows(Floats(handed), Doubles(Floats(plain[layer])), model_->config().hidden);
      }
    }
    EXPECT_EQ(chain.handoff().Bytes(SliceKind::kX), layers() * kTokens * x_row_bytes());
    EXPECT_EQ(chain.handoff().Bytes(SliceKind::kKv), layers() * kTokens * model_->kv_row_bytes());
  }
}

TEST_P(HandedXTest, OfAPrefixEachMemberHandsOffItsOwnRowsAndTheOneBehindItNone) {
  constexpr int64_t kX = 350;
  const std::vector<int64_t> bounds = {0, 200, 450, kTokens};
  TestChain chain(keeping_, 3, 3 * kTokens);
  Start(chain, 1, bounds, kX);
  AwaitWhole(loaded_, chain, 1, 0, bounds);
  for (int64_t layer = 0; layer < layers(); ++layer) {
    EXPECT_TRUE(XOf(chain, 1, layer, kX, x_row_bytes()) == model_->Kept(layer, kX)) << layer;
  }
  EXPECT_EQ(chain.handoff().Bytes(SliceKind::kX), layers() * kX * x_row_bytes());
  EXPECT_EQ(model_->kept(), static_cast<size_t>(layers() * bounds[2])) << "the last one makes none";
  for (const int member : {0, 1}) EXPECT_TRUE(chain.member(member).trace.Has(1, 0, TracePoint::kXHandedOff));
  EXPECT_FALSE(chain.member(2).trace.Has(1, 0, TracePoint::kXHandedOff));
}

// In the middle of a part, at a border, over whole parts, and of the whole prompt.
TEST_P(HandedXTest, InsteadOfKvOfAPrefixAndKvOfTheRestIsToTheBitWhatItWas) {
  const std::vector<int64_t> bounds = {0, 200, 450, kTokens};
  TestChain all(keeping_, 3, 3 * kTokens);
  Start(all, 1, bounds, kTokens);
  for (int member = 0; member < 3; ++member) ASSERT_TRUE(all.member(member).news.AwaitDone(1).ok());
  const auto layer_of = [&](TestChain& chain, int64_t layer, int64_t from, SliceKind kind) {
    const int64_t row = kind == SliceKind::kX ? x_row_bytes() : model_->kv_row_bytes();
    return chain.handoff().Layer(TestChain::Lease(1), layer, from, kTokens, row, kind);
  };
  for (const int64_t from : {int64_t{64}, int64_t{200}, int64_t{500}, kTokens}) {
    SCOPED_TRACE(from);
    TestChain chain(keeping_, 3, 3 * kTokens);
    Start(chain, 1, bounds, kTokens, from);
    for (int member = 0; member < 3; ++member) ASSERT_TRUE(chain.member(member).news.AwaitDone(1).ok());
    EXPECT_EQ(chain.handoff().Bytes(SliceKind::kX), layers() * kTokens * x_row_bytes());
    EXPECT_EQ(chain.handoff().Bytes(SliceKind::kKv), layers() * (kTokens - from) * model_->kv_row_bytes());
    for (int64_t layer = 0; layer < layers(); ++layer) {
      EXPECT_TRUE(layer_of(chain, layer, 0, SliceKind::kX) == layer_of(all, layer, 0, SliceKind::kX)) << layer;
      if (from == kTokens) continue;
      const size_t cut = static_cast<size_t>(from * model_->kv_row_bytes());
      EXPECT_TRUE(layer_of(chain, layer, from, SliceKind::kKv) == layer_of(all, layer, 0, SliceKind::kKv).substr(cut));
    }
    for (int member = 0; member < 3; ++member) {
      EXPECT_EQ(chain.member(member).trace.Has(1, 0, TracePoint::kHandedOff), bounds[member + 1] > from) << member;
    }
  }
}

TEST_P(HandedXTest, ThereIsNoneWhereTheDecodeWorkerTakesNone) {
  TestChain chain(keeping_, 2, kTokens);
  Start(chain, 1, {0, 300, kTokens}, 0);
  AwaitWhole(loaded_, chain, 1, 0, {0, 300, kTokens});
  EXPECT_EQ(chain.handoff().Bytes(SliceKind::kX), 0);
  EXPECT_EQ(model_->kept(), 0u);
}

TEST_P(HandedXTest, AJobThatHasFailedHandsOffNone) {
  TestChain chain(keeping_, 1, 3 * kTokens);
  ChainMember& worker = chain.member(0);
  worker.trace.HoldAt(TracePoint::kQkvBegin);
  Start(chain, 1, {0, kTokens}, kTokens);
  worker.trace.Await(1, 0, TracePoint::kQkvBegin);
  worker.stage->Cancel(1, absl::CancelledError("gone"));
  worker.trace.Release();
  EXPECT_EQ(worker.news.AwaitDone(1), absl::CancelledError("gone"));
  EXPECT_EQ(chain.handoff().Bytes(SliceKind::kX), 0);
  EXPECT_EQ(chain.handoff().Bytes(SliceKind::kKv), 0);
}

TEST_P(HandedXTest, AJobIsNotDoneBeforeItsXIsAcknowledgedAndFailsWhereItIsRefused) {
  TestChain chain(keeping_, 1, 3 * kTokens);
  ChainMember& worker = chain.member(0);
  chain.handoff().Block({SliceKind::kX});
  Start(chain, 1, {0, kTokens}, kTokens);
  worker.news.AwaitFirstToken(1);
  for (int64_t layer = 0; layer < layers(); ++layer) worker.trace.Await(1, layer, TracePoint::kHandedOff);
  EXPECT_FALSE(worker.news.done(1));
  chain.handoff().Refuse(absl::OutOfRangeError("no X here"));
  const JobEnd end = worker.news.AwaitEnd(1);
  EXPECT_EQ(end.status, absl::OutOfRangeError("no X here"));
  EXPECT_EQ(end.cause, JobCause::kDecode);
}

TEST_P(HandedXTest, AJobWhoseXDoesNotFitIsRefusedAndRunsWithoutIt) {
  TestChain chain(keeping_, 1, 30, kMinLayerSlots);
  ChainMember& worker = chain.member(0);
  const int64_t most = worker.stage->max_prefix_tokens_with_x();
  EXPECT_EQ(most, 30 * model_->kv_row_bytes() / (model_->kv_row_bytes() + x_row_bytes()));
  Start(chain, 1, {0, most}, most);
  EXPECT_TRUE(worker.news.AwaitDone(1).ok());
  Start(chain, 2, {0, most + 1}, most + 1);
  EXPECT_EQ(worker.news.AwaitDone(2).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(worker.news.AwaitEnd(2).cause, JobCause::kRouter);
  Start(chain, 3, {0, 30}, 0);
  EXPECT_TRUE(worker.news.AwaitDone(3).ok());
}

TEST_P(HandedXTest, OfMoreThanThePromptOrWithoutALeaseMakesNoSense) {
  TestChain chain(keeping_, 1, 30);
  PrefillJob job = chain.JobOf(1, 0, 0, {0, 10}, ids_, {}, true, absl::InfiniteFuture(), GetParam().schedule);
  for (const int64_t wrong : {-1, 11}) {
    job.x_tokens = wrong;
    EXPECT_EQ(CheckJob(job, 100, 320), absl::InvalidArgumentError(absl::StrCat(
                                           "job 1: x_tokens: ", wrong, " is not in [0, 10], the prompt's tokens")));
  }
  job.x_tokens = 9;
  for (const int64_t wrong : {-1, 10}) {
    job.kv_from = wrong;
    EXPECT_EQ(CheckJob(job, 100, 320),
              absl::InvalidArgumentError(
                  absl::StrCat("job 1: kv_from: ", wrong, " is not in [0, 9], the tokens of which X is handed off")));
  }
  job.x_tokens = job.kv_from = 10;
  EXPECT_TRUE(CheckJob(job, 100, 320).ok());
  job.lease.reset();
  EXPECT_EQ(CheckJob(job, 100, 320), absl::InvalidArgumentError("job 1: x_tokens: X goes nowhere without a lease"));
}

// By blocks of 32, in 8 bits where products read them so, else in 16.
TEST(HandedQuantisedX, IsToTheBitWhatProjectLeavesQuantised) {
  constexpr int64_t kTokens = 300;
  const std::vector<int64_t> bounds = {0, 130, kTokens};
  SyntheticModel small = SmallModel();
  small.SetWeightType(WeightType::kQ8_0);
  const std::shared_ptr<const ModelFile> file = *OpenModelFile(WriteSynthetic(small, "handed_quantised_x"));
  for (const RowForm form : {RowForm::kQ8, RowForm::kQ16}) {
    SCOPED_TRACE(std::string(RowFormName(form)));
    const std::shared_ptr<Device> device =
        *NewCpuDevice({.threads = 2, .int8 = form == RowForm::kQ8, .kv_dtype = DType::kF16});
    const auto model =
        std::make_shared<XKeepingModel>(*LoadModel(file, device, kUseDecode | kUsePrefill, [](int, int) {}), *device);
    TestChain chain({file, device, model}, 2, 3 * kTokens);
    for (int part = 0; part < 2; ++part) {
      PrefillJob job = chain.JobOf(1, 0, part, bounds, RandomIds(kTokens, 320, 41), {}, true, absl::InfiniteFuture(),
                                   Schedule::kKvr);
      job.x_tokens = kTokens;
      chain.member(part).stage->Start(std::move(job));
    }
    for (int part = 0; part < 2; ++part) EXPECT_TRUE(chain.member(part).news.AwaitDone(1).ok());
    for (int64_t layer = 0; layer < model->config().layers; ++layer) {
      const std::vector<float> kept = Floats(model->Kept(layer, kTokens));
      ASSERT_EQ(kept.size(), static_cast<size_t>(kTokens * small.hidden));
      std::string expected;
      for (size_t i = 0; i < kept.size(); i += 32) {
        for (const std::byte byte : QuantizeReference(&kept[i], QuantOf(form)).bytes) {
          expected += static_cast<char>(byte);
        }
      }
      const std::string handed = chain.handoff().Layer(TestChain::Lease(1), layer, 0, kTokens,
                                                       RowFormBytes(form, small.hidden), SliceKind::kX);
      EXPECT_TRUE(handed == expected) << "layer " << layer;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, HandedXTest,
                         ::testing::Values(HowRun{DType::kF32, Schedule::kKvr}, HowRun{DType::kF32, Schedule::kTsp},
                                           HowRun{DType::kF32, Schedule::kTspCausal},
                                           HowRun{DType::kBF16, Schedule::kKvr}),
                         [](const auto& run) {
                           std::string name(ScheduleName(run.param.schedule));
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name + "_" + std::string(DTypeName(run.param.dtype));
                         });

}  // namespace
}  // namespace runahead
