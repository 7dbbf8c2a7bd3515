#include "worker/model/load_plan.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/parsed_gguf.h"
#include "tests/testing/wrapping_device.h"
#include "worker/model/model.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

// A checkpoint of zeros, in which one tensor may be missing, or have rows of another length.
class ZeroTensors final : public TensorSink {
 public:
  struct Change {
    std::string without = {}, longer = {};
  };
  ZeroTensors(GgufBuilder& file, Change change) : file_(file), change_(std::move(change)) {}

  void Matrix(const std::string& name, WeightType type, int64_t columns, int64_t rows, float) override {
    Add(name, type, {columns, rows});
  }
  void Norm(const std::string& name, int64_t size) override { Add(name, WeightType::kF32, {size}); }
  void Bias(const std::string& name, int64_t size) override { Norm(name, size); }
  void Values(const std::string& name, const std::vector<float>& values) override {
    Norm(name, static_cast<int64_t>(values.size()));
  }

  std::vector<std::string> names() const { return names_; }

 private:
  void Add(const std::string& name, WeightType type, std::vector<int64_t> dims) {
    names_.push_back(name);
    if (name == change_.without) return;
    if (name == change_.longer) dims[0] += BlockOf(type).elements;
    const int64_t rows = dims.size() > 1 ? dims[1] : 1;
    file_.AddTensor(name, type, dims, std::string(rows * WeightRowBytes(type, dims[0]), '\0'));
  }

  GgufBuilder& file_;
  const Change change_;
  std::vector<std::string> names_;
};

SyntheticModel ModelOf(SyntheticFamily family) {
  SyntheticModel model;
  model.family = family;
  model.kv_heads = family == SyntheticFamily::kOpt ? model.heads : family == SyntheticFamily::kFalcon ? 1 : 2;
  model.tied = family == SyntheticFamily::kOpt;
  model.context_length = 64;
  return model;
}

GgufBuilder FileOf(const SyntheticModel& model, const ZeroTensors::Change& change, std::vector<std::string>* names) {
  GgufBuilder file;
  ZeroTensors tensors(file, change);
  EXPECT_TRUE(AddSyntheticModel(model, file, tensors).ok());
  if (names != nullptr) *names = tensors.names();
  return file;
}

class CountingDevice final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) override {
    ++calls;
    return WrappingDevice::Allocate(bytes, kind);
  }
  absl::StatusOr<std::shared_ptr<const Weights>> LoadWeights(const WeightSource& source, unsigned uses) override {
    ++calls;
    return WrappingDevice::LoadWeights(source, uses);
  }
  std::atomic<int> calls = 0;
};

// Loads the file for all uses onto a device whose memory it must not touch, as it cannot be loaded.
absl::Status Refused(const GgufBuilder& builder) {
  const auto device = std::make_shared<CountingDevice>(*NewCpuDevice({}));
  const auto file = ParseGguf(builder.Build());
  if (!file.ok()) return file.status();
  const absl::Status status = LoadModel(*file, device, kUsePrefill | kUseDecode, [](int, int) {}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(device->calls, 0) << status;
  return status;
}

class EachFamily : public ::testing::TestWithParam<SyntheticFamily> {};
INSTANTIATE_TEST_SUITE_P(LoadPlan, EachFamily, ::testing::ValuesIn(kSyntheticFamilies),
                         [](const auto& info) { return std::string(ArchitectureOf(info.param)); });

TEST_P(EachFamily, NamesAMissingTensorBeforeItTakesMemory) {
  std::vector<std::string> names;
  FileOf(ModelOf(GetParam()), {}, &names);
  ASSERT_GT(names.size(), 10u);
  for (const std::string& name : names) {
    if (name == "output.weight") continue;  // then the embedding is the head
    const absl::Status status = Refused(FileOf(ModelOf(GetParam()), {.without = name}, nullptr));
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

TEST_P(EachFamily, NamesATensorOfAnotherShapeBeforeItTakesMemory) {
  std::vector<std::string> names;
  FileOf(ModelOf(GetParam()), {}, &names);
  for (const std::string& name : names) {
    const absl::Status status = Refused(FileOf(ModelOf(GetParam()), {.longer = name}, nullptr));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

TEST_P(EachFamily, NamesATensorThatNothingReads) {
  GgufBuilder file = FileOf(ModelOf(GetParam()), {}, nullptr);
  file.AddTensor("blk.1.attn_sinks.weight", WeightType::kF32, {4}, std::string(16, '\0'));
  const absl::Status status = Refused(file);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("blk.1.attn_sinks.weight"));
}

TEST(LoadPlan, NamesHeadsThatTheDeviceLacksBeforeItTakesMemory) {
  SyntheticModel model = ModelOf(SyntheticFamily::kLlama);
  model.head_dim = 20;
  const absl::Status status = Refused(FileOf(model, {}, nullptr));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cpu: head_dim is 20, not a multiple of 8"));
}

// The plan's bytes are those that the loaded model counts, up to what layouts of products in f32 round up.
void ExpectBytesAsLoaded(const SyntheticModel& model) {
  const auto file = *ParseGguf(FileOf(model, {}, nullptr).Build());
  const LoadPlan plan = *PlanLoading(file);
  for (const bool int8 : {false, true}) {
    for (const unsigned uses : {unsigned{kUsePrefill}, unsigned{kUseDecode}, kUsePrefill | kUseDecode}) {
      const auto loaded = *LoadModel(file, *NewCpuDevice({.int8 = int8}), uses, [](int, int) {});
      const WeightBytes bytes = loaded->weight_bytes(), planned = BytesOnCpu(plan, DType::kF32, int8, uses);
      const auto near = [](size_t is, size_t should) { return is >= should && is <= should + should / 20; };
      EXPECT_EQ(bytes.stored, planned.stored);
      EXPECT_TRUE(near(bytes.packed, planned.packed)) << bytes.packed << " " << planned.packed;
      EXPECT_EQ(bytes.int8, planned.int8);
    }
  }
}

TEST_P(EachFamily, KnowsWhatWeightsTake) {
  SyntheticModel model = ModelOf(GetParam());
  model.hidden = 256;
  model.ffn = 512;
  model.heads = 8;
  if (model.kv_heads == 4) model.kv_heads = 8;
  for (const WeightType type : {WeightType::kF32, WeightType::kQ4_1, WeightType::kQ6_K}) {
    model.SetWeightType(type);
    ExpectBytesAsLoaded(model);
  }
}

class EachType : public ::testing::TestWithParam<WeightBlock> {};
INSTANTIATE_TEST_SUITE_P(LoadPlan, EachType, ::testing::ValuesIn(kWeightBlocks),
                         [](const auto& info) { return std::string(info.param.name); });

// Blocks, and superblocks, in a row that fill no whole lines of a cache; a table's rows that fill no groups of sixteen.
TEST_P(EachType, TakesWhatThePlanSays) {
  SyntheticModel model = ModelOf(SyntheticFamily::kLlama);
  model.hidden = IsSuperblock(GetParam().type) ? 3 * kSuperblock : 192;
  model.ffn = model.hidden;
  model.vocab = 323;
  model.tied = false;
  model.SetWeightType(GetParam().type);
  ExpectBytesAsLoaded(model);
}

SyntheticModel PartlyQuantised() {
  SyntheticModel model = ModelOf(SyntheticFamily::kLlama);
  model.hidden = model.ffn = kSuperblock;
  model.SetWeightType(WeightType::kQ4_K);
  model.output_type = WeightType::kF16;
  model.finer_type = WeightType::kF16;
  return model;
}

TEST(LoadPlan, SaysWhatIsLeftOutOf8BitsThoughPartOfItIsQuantised) {
  const SyntheticModel model = PartlyQuantised();
  const LoadPlan plan = *PlanLoading(*ParseGguf(FileOf(model, {}, nullptr).Build()));
  // Q and K of two layers in 144 bytes a row, V in 512; in f32 they take 1024.
  const double in_file = 2 * ((256 + 128) * 144 + 128 * 512), takes = 2 * (256 + 2 * 128) * 1024;
  const std::string said = LeftOutOfInt8(plan, kUsePrefill);
  EXPECT_THAT(said, HasSubstr("2 matrices are multiplied in f32, not in 8 bits"));
  EXPECT_THAT(said, HasSubstr("the first: blk.0.attn_q.weight+blk.0.attn_k.weight+blk.0.attn_v.weight"));
  EXPECT_THAT(said, HasSubstr(absl::StrFormat("%.1f MiB, in the file %.1f,", takes / (1 << 20), in_file / (1 << 20))));
  ExpectBytesAsLoaded(model);  // which counts them
}

TEST(LoadPlan, WhatIsOneTensorOrQuantisedAsAWholeIsNoSurprise) {
  SyntheticModel model = PartlyQuantised();
  for (const WeightType finer : {WeightType::kQ6_K, WeightType::kQ4_K}) {
    model.finer_type = finer;
    EXPECT_EQ(LeftOutOfInt8(*PlanLoading(*ParseGguf(FileOf(model, {}, nullptr).Build())), kUsePrefill), "");
  }
}

TEST(LoadPlan, CountsElementsAndWhatAGpuTakes) {
  const SyntheticModel model = ModelOf(SyntheticFamily::kLlama);
  const LoadPlan plan = *PlanLoading(*ParseGguf(FileOf(model, {}, nullptr).Build()));
  // Two tables; of each layer Q, K, V and output, gate, up and down.
  const int64_t elements = 2 * 320 * 64 + 2 * (64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 160);
  EXPECT_EQ(plan.elements(), elements);
  EXPECT_EQ(BytesOnGpu(plan, DType::kBF16).total(), 2u * elements);
  // Two norms a layer and one behind them, and the rotation of 64 positions of heads of 16.
  EXPECT_EQ(plan.floats, 5 * 64 + 64 * 16);
}

}  // namespace
}  // namespace runahead
