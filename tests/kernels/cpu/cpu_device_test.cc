#include "kernels/cpu/cpu_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>

#include "tests/kernels/cpu/random_weights.h"
#include "tests/testing/await.h"

namespace runahead {
namespace {

std::shared_ptr<Device> MakeDevice(int threads, DType dtype = DType::kF32) {
  return *NewCpuDevice({.threads = threads, .compute_dtype = dtype});
}

BufferRef Bytes(Device& device, size_t bytes, MemoryKind kind = MemoryKind::kDevice) {
  return BufferRef::Whole(*device.Allocate(bytes, kind));
}

Tensor Filled(Device& device, const std::vector<float>& values, int64_t rows) {
  const BufferRef ref = Bytes(device, values.size() * 4);
  std::memcpy(ref.data(), values.data(), values.size() * 4);
  return MakeTensor(ref, DType::kF32, rows, values.size() / rows);
}

Tensor Empty(Device& device, DType dtype, int64_t rows, int64_t cols) {
  return MakeTensor(Bytes(device, rows * cols * DTypeSize(dtype)), dtype, rows, cols);
}

std::vector<float> Floats(const Tensor& tensor) {
  std::vector<float> values;
  for (int64_t r = 0; r < tensor.rows; ++r) {
    values.insert(values.end(), tensor.row<float>(r), tensor.row<float>(r) + tensor.cols);
  }
  return values;
}

TEST(CpuDevice, RefusesImpossibleOptions) {
  EXPECT_EQ(NewCpuDevice({.threads = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(NewCpuDevice({.compute_dtype = DType::kF16}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(CpuDevice, SaysWhatItComputesInAndKeepsKvIn) {
  EXPECT_EQ(NewCpuDevice({.int8 = true}).value()->numerics(), "int8");
  EXPECT_EQ(NewCpuDevice({}).value()->numerics(), "f32");
  EXPECT_EQ(NewCpuDevice({}).value()->kv_dtype(), DType::kF32);
  EXPECT_EQ(NewCpuDevice({.kv_dtype = DType::kF16}).value()->kv_dtype(), DType::kF16);
}

TEST(CpuDevice, TheBudgetCountsDeviceMemoryAndWeightsButNotHostMemory) {
  auto device = *NewCpuDevice({.memory_budget = 1 << 20});
  EXPECT_TRUE(device->Allocate(2 << 20, MemoryKind::kHost).ok());
  auto half = device->Allocate(600 << 10, MemoryKind::kDevice);
  ASSERT_TRUE(half.ok());
  EXPECT_EQ(device->Allocate(600 << 10, MemoryKind::kDevice).status().code(), absl::StatusCode::kResourceExhausted);
  const RandomWeights weights(WeightType::kF32, 400, 400, 1);
  EXPECT_EQ(device->LoadWeights(weights.Source(), kUseDecode).status().code(), absl::StatusCode::kResourceExhausted);
  half->reset();
  EXPECT_TRUE(device->LoadWeights(weights.Source(), kUseDecode).ok());
  const size_t left = device->memory_left();
  const RandomWeights large(WeightType::kF32, 600, 600, 1);  // more than the budget
  EXPECT_TRUE(device->LoadWeights(large.Source(), kUsePrefill | kUseDecode | kUseStreamed).ok());
  EXPECT_EQ(device->memory_left(), left);
}

// A stream steps back when it first computes.
void ComputeSomething(Device& device, Stream& stream) {
  const Tensor x = Empty(device, DType::kF32, 1, 8), out = Empty(device, DType::kF32, 1, 8);
  ASSERT_TRUE(device.Scale(stream, x, 2, false, out).ok());
}

TEST(CpuDevice, StreamsStepBack) {
  const int before = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
  if (before > 10) GTEST_SKIP() << "this process has stepped back already";
  const auto device = *NewCpuDevice({.threads = 1, .nice = 5});
  const auto stream = device->NewStream("back");
  ComputeSomething(*device, *stream);
  EventSource gate;
  device->WaitFor(*stream, gate.event());  // so that the callback is there before the stream comes to it
  const Event done = device->Record(*stream);
  int seen = -1;
  done.OnFire([&seen](const absl::Status&) { seen = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); });
  gate.Fire(absl::OkStatus());
  ASSERT_TRUE(device->Record(*stream).Wait().ok());
  EXPECT_EQ(seen, before + 5);
}

TEST(CpuDevice, ComputeThreadsStepBackAsItsStreamsDo) {
  const int before = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
  if (before > 10) GTEST_SKIP() << "this process has stepped back already";
  const auto device = *NewCpuDevice({.threads = 3, .nice = 5});
  const auto stream = device->NewStream("back");
  ComputeSomething(*device, *stream);
  const auto behind = [before] {
    int threads = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      threads += getpriority(PRIO_PROCESS, static_cast<id_t>(std::stoi(task.path().filename()))) == before + 5;
    }
    return threads;
  };
  EXPECT_TRUE(testing::Await("two workers and the stream have stepped back", [&] { return behind() >= 3; }));
}

TEST(CpuDevice, LinearRefusesWrongArguments) {
  auto device = MakeDevice(1);
  auto stream = device->NewStream("linear");
  const RandomWeights source(WeightType::kF32, 8, 4, 1);
  auto decode_only = *device->LoadWeights(source.Source(), kUseDecode);
  const Tensor x = Empty(*device, DType::kF32, 2, 4), out = Empty(*device, DType::kF32, 2, 8);
  EXPECT_EQ(device->Linear(*stream, x, decode_only, {}, out).code(), absl::StatusCode::kFailedPrecondition);
  const LinearOptions invariant{.batch_invariant = true};
  EXPECT_TRUE(device->Linear(*stream, x, decode_only, invariant, out).ok());
  EXPECT_EQ(device->Linear(*stream, out, decode_only, invariant, out).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device->Linear(*stream, Empty(*device, DType::kBF16, 2, 4), decode_only, invariant, out).code(),
            absl::StatusCode::kInvalidArgument);
  Tensor beyond = x;
  beyond.stride = 100;
  EXPECT_THAT(std::string(device->Linear(*stream, beyond, decode_only, invariant, out).message()),
              ::testing::HasSubstr("buffer"));
  EXPECT_EQ(device->LoadWeights(source.Source(), 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CpuDevice, APackedMatrixIsCutWhereItsSourceSays) {
  auto device = MakeDevice(1);
  auto stream = device->NewStream("linear");
  const RandomWeights rows(WeightType::kF32, 200, 4, 1);
  WeightSource source = rows.Source();
  source.cuts = {128};
  auto weights = *device->LoadWeights(source, kUsePrefill);
  const Tensor x = Filled(*device, RandomFloats(2 * 4, 2), 2);
  const auto linear = [&](int64_t first_row, int64_t cols) {
    return device->Linear(*stream, x, weights, {.first_row = first_row}, Empty(*device, DType::kF32, 2, cols));
  };
  EXPECT_TRUE(linear(0, 200).ok());
  EXPECT_TRUE(linear(0, 128).ok());
  EXPECT_TRUE(linear(128, 72).ok());
  for (const auto& [first_row, cols] : {std::pair(0, 64), std::pair(64, 64), std::pair(64, 136), std::pair(128, 71)}) {
    const absl::Status status = linear(first_row, cols);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << first_row;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("cuts"));
  }
  EXPECT_TRUE(device->Record(*stream).Wait().ok());
}

TEST(CpuDevice, EmbedReadsRowsAndRefusesIdsOutOfRange) {
  auto device = MakeDevice(2);
  auto stream = device->NewStream("embed");
  const RandomWeights source(WeightType::kQ8_0, 50, 64, 1);
  auto table = *device->LoadWeights(source.Source(), kUseDecode);
  const Tensor out = Empty(*device, DType::kF32, 3, 64);
  ASSERT_TRUE(device->Embed(*stream, *table, {49, 0, 17}, false, out).ok());
  ASSERT_TRUE(device->Record(*stream).Wait().ok());
  for (int64_t c = 0; c < 64; ++c) {
    EXPECT_EQ(out.row<float>(0)[c], static_cast<float>(source.Value(49, c)));
    EXPECT_EQ(out.row<float>(2)[c], static_cast<float>(source.Value(17, c)));
  }
  EXPECT_EQ(device->Embed(*stream, *table, {1, 2, 50}, false, out).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device->Embed(*stream, *table, {1, 2, -1}, false, out).code(), absl::StatusCode::kInvalidArgument);
}

// What a family that rotates all of Q and K makes of a row, to the bit: products rounded before they are added.
TEST(CpuDevice, RopeAndStoreQkvRoundEachStepOnce) {
  auto device = MakeDevice(2);
  auto stream = device->NewStream("rope");
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 6};
  const int64_t tokens = 5, cols = (4 + 2 * 2) * 6;
  const std::vector<float> values = RandomFloats(tokens * cols, 1), rotation = RandomFloats(20 * 6, 2);
  const std::vector<int32_t> positions = {7, 8, 9, 19, 0}, places = {12, 13, 14, 24, 20};
  const auto table = *device->MakeKvTable(*stream, {.page_tokens = 5,
                                                    .pages = {1, 2, 0, 4},
                                                    .sequences = {{.queries = 3, .length = 10, .end = 10},
                                                                  {.length = 20, .first_page = 0, .end = 20},
                                                                  {.length = 1, .first_page = 3, .end = 1}}});
  const Tensor q = Empty(*device, DType::kF32, tokens, 24), qkv = Filled(*device, values, tokens);
  const BufferRef kv = Bytes(*device, 25 * shape.kv_row_bytes());
  ASSERT_TRUE(device->Rope(*stream, qkv.Cols(0, 36), 6, {.table = Filled(*device, rotation, 20)}, *table, 0).ok());
  ASSERT_TRUE(device->StoreQkv(*stream, qkv, shape, q, *table, 0, kv).ok());
  ASSERT_TRUE(device->Record(*stream).Wait().ok());
  for (int64_t t = 0; t < tokens; ++t) {
    const float* row = &values[t * cols];
    const float* cos_sin = &rotation[positions[t] * 6];
    const auto* stored = reinterpret_cast<const float*>(kv.data() + places[t] * shape.kv_row_bytes());
    for (int64_t h = 0; h < 6; ++h) {
      const float* got = h < 4 ? q.row<float>(t) + h * 6 : stored + (h - 4) * 6;
      for (int64_t d = 0; d < 3; ++d) {
        const float a = row[h * 6 + d], b = row[h * 6 + 3 + d];
        EXPECT_EQ(got[d], a * cos_sin[d] - b * cos_sin[3 + d]);
        EXPECT_EQ(got[3 + d], b * cos_sin[d] + a * cos_sin[3 + d]);
      }
    }
    for (int64_t d = 0; d < 12; ++d) EXPECT_EQ(stored[12 + d], row[36 + d]);
  }
}

// Row ops give the same bits for a row alone and among many, on any number of threads.
TEST(CpuDevice, RowOpsDoNotDependOnTheirNeighbours) {
  const int64_t rows = 300, dim = 129;
  const std::vector<float> x = RandomFloats(rows * 2 * dim, 1), weight = RandomFloats(2 * dim, 2);
  std::vector<std::vector<float>> norms, gates, tops;
  for (int threads : {1, 2, 3}) {
    auto device = MakeDevice(threads);
    auto stream = device->NewStream("rows");
    const Tensor in = Filled(*device, x, rows), w = Filled(*device, weight, 1);
    const Tensor norm = Empty(*device, DType::kF32, rows, 2 * dim), gate = Empty(*device, DType::kF32, rows, dim);
    const Tensor ids = Empty(*device, DType::kF32, rows, 5), top = Empty(*device, DType::kF32, rows, 5);
    const Tensor sum = Empty(*device, DType::kF32, rows, 1);
    for (int64_t first = 0; first < rows; first += threads == 1 ? 1 : rows) {
      const int64_t n = threads == 1 ? 1 : rows;
      const Tensor part = in.Rows(first, n);
      ASSERT_TRUE(device->RmsNorm(*stream, part, w, 1e-5f, norm.Rows(first, n)).ok());
      ASSERT_TRUE(device->GatedActivate(*stream, part, Activation::kSilu, gate.Rows(first, n)).ok());
      ASSERT_TRUE(device->TopK(*stream, part, 5, ids.Rows(first, n), top.Rows(first, n), sum.Rows(first, n)).ok());
    }
    ASSERT_TRUE(device->Record(*stream).Wait().ok());
    norms.push_back(Floats(norm));
    gates.push_back(Floats(gate));
    tops.push_back(Floats(top));
    EXPECT_EQ(norms.back(), norms.front());
    EXPECT_EQ(gates.back(), gates.front());
    EXPECT_EQ(tops.back(), tops.front());
  }
}

TEST(CpuDevice, TopKRefusesTooMany) {
  auto device = MakeDevice(1);
  auto stream = device->NewStream("top");
  const Tensor logits = Empty(*device, DType::kF32, 1, 600), out = Empty(*device, DType::kF32, 1, 513);
  const Tensor sum = Empty(*device, DType::kF32, 1, 1);
  EXPECT_EQ(device->TopK(*stream, logits, 513, out, out, sum).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device->TopK(*stream, logits, 0, out, out, sum).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CpuDevice, AttentionChecksWhatItIsGiven) {
  auto device = MakeDevice(1);
  auto stream = device->NewStream("attention");
  const AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = 8};
  const Tensor q = Filled(*device, RandomFloats(2 * 16, 1), 2), out = Empty(*device, DType::kF32, 2, 16);
  const BufferRef rows = Bytes(*device, 3 * shape.kv_row_bytes());
  std::memset(rows.data(), 0, rows.size);
  const auto attend = [&](int64_t queries, int64_t length, int64_t dense_length = 0) {
    const auto table = device->MakeKvTable(*stream, KvLayout::OnePage(queries, length, dense_length));
    return table.ok() ? device->Attention(*stream, q, shape, **table, rows, out) : table.status();
  };
  EXPECT_TRUE(attend(2, 3).ok());
  ASSERT_TRUE(device->Record(*stream).Wait().ok());
  EXPECT_EQ(out.row<float>(1)[15], 0.0f);  // values are all zero
  EXPECT_TRUE(attend(2, 2, 3).ok());
  EXPECT_EQ(attend(2, 4).code(), absl::StatusCode::kInvalidArgument) << "more than its KV";
  EXPECT_EQ(attend(2, 1).code(), absl::StatusCode::kInvalidArgument) << "more queries than positions";
  EXPECT_EQ(attend(2, 2, 1).code(), absl::StatusCode::kInvalidArgument) << "a rectangle less than the sequence";
  EXPECT_EQ(attend(2, 2, 4).code(), absl::StatusCode::kInvalidArgument) << "a rectangle more than its KV";
  EXPECT_EQ(attend(3, 3).code(), absl::StatusCode::kInvalidArgument) << "more queries than q";
}

// Whoever made it may let go of it at once.
TEST(CpuDevice, ATableLivesUntilItsOpsHaveRun) {
  auto device = MakeDevice(1);
  auto stream = device->NewStream("held");
  const AttentionShape shape{.heads = 1, .kv_heads = 1, .head_dim = 8};
  const Tensor kv = Filled(*device, RandomFloats(16, 1), 1), q = Filled(*device, RandomFloats(8, 2), 1);
  const Tensor out = Empty(*device, DType::kF32, 1, 8);
  const Tensor partials = Empty(*device, DType::kF32, 1, 9);
  EventSource go;
  device->WaitFor(*stream, go.event());
  {
    const auto table = *device->MakeKvTable(*stream, KvLayout::OnePage(1, 1));
    ASSERT_TRUE(device->AttendPieces(*stream, q, shape, *table, kv.ref, partials).ok());
    ASSERT_TRUE(device->MergePieces(*stream, partials, shape, *table, out).ok());
  }
  go.Fire(absl::OkStatus());
  ASSERT_TRUE(device->Record(*stream).Wait().ok());
  for (int64_t d = 0; d < 8; ++d) EXPECT_EQ(out.row<float>(0)[d], kv.row<float>(0)[8 + d]);
}

// A device that multiplies quantised weights in 8 bits, and what its Linear makes of one matrix.
struct Int8Linear {
  std::shared_ptr<Device> device = *NewCpuDevice({.threads = 2, .int8 = true});
  std::unique_ptr<Stream> stream = device->NewStream("linear");

  std::vector<float> Run(const std::shared_ptr<const Weights>& weights, const Tensor& x, const LinearOptions& options,
                         int64_t cols) {
    const Tensor out = Filled(*device, std::vector<float>(x.rows * cols, 0.0f), x.rows);
    EXPECT_TRUE(device->Linear(*stream, x, weights, options, out).ok());
    EXPECT_TRUE(device->Record(*stream).Wait().ok());
    return Floats(out);
  }
};

TEST(CpuDeviceInt8, StreamedWeightsAreWhatTheyWereWhereTheyAreBrought) {
  Int8Linear linear;
  const RandomWeights source(WeightType::kQ5_0, 50, 64, 7);
  const auto resident = *linear.device->LoadWeights(source.Source(), kUsePrefill | kUseDecode);
  const auto streamed = *linear.device->LoadWeights(source.Source(), kUsePrefill | kUseDecode | kUseStreamed);
  const ConstBufferRef home = streamed->home(), rest = streamed->HomeFrom(35);
  ASSERT_NE(home.buffer, nullptr);
  EXPECT_GT(rest.data(), home.data());
  EXPECT_EQ(rest.data() + rest.size, home.data() + home.size);
  const BufferRef slot = Bytes(*linear.device, home.size);
  std::memset(slot.data(), 0, slot.size);
  std::memcpy(slot.data() + (rest.data() - home.data()), rest.data(), rest.size);
  const auto brought = *linear.device->WeightsAt(*streamed, slot);
  const Tensor x = Filled(*linear.device, RandomFloats(64, 8), 1);
  EXPECT_EQ(linear.Run(brought, x, {.first_row = 35}, 15), linear.Run(resident, x, {.first_row = 35}, 15));
}

TEST(CpuDeviceInt8, EmbedsExactlyAndLeavesFloatsAlone) {
  Int8Linear linear;
  const RandomWeights quantised(WeightType::kQ5_1, 20, 64, 9), plain(WeightType::kF16, 20, 64, 10);
  const auto table = *linear.device->LoadWeights(quantised.Source(), kUseDecode);
  const Tensor rows = Empty(*linear.device, DType::kF32, 2, 64);
  ASSERT_TRUE(linear.device->Embed(*linear.stream, *table, {19, 4}, false, rows).ok());
  ASSERT_TRUE(linear.device->Record(*linear.stream).Wait().ok());
  for (int64_t c = 0; c < 64; ++c) {
    EXPECT_EQ(rows.row<float>(0)[c], static_cast<float>(quantised.Value(19, c)));
    EXPECT_EQ(rows.row<float>(1)[c], static_cast<float>(quantised.Value(4, c)));
  }
  // Of weights that are not quantised activations are not either.
  const auto weights = *linear.device->LoadWeights(plain.Source(), kUsePrefill | kUseDecode);
  const std::vector<float> x = RandomFloats(64, 11);
  const std::vector<float> out = linear.Run(weights, Filled(*linear.device, x, 1), {}, 20);
  for (int64_t n = 0; n < 20; ++n) {
    double sum = 0, size = 0;
    for (int64_t c = 0; c < 64; ++c) {
      sum += x[c] * plain.Value(n, c);
      size += std::abs(x[c] * plain.Value(n, c));
    }
    EXPECT_NEAR(out[n], sum, 1e-6 * size);
  }
}

}  // namespace
}  // namespace runahead
