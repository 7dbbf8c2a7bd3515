// Stores that keep KV, and X, in 4 or 8 bits: what is in them, and what they refuse.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/reference_kv_quant.h"
#include "tests/worker/kv/sequence_rows.h"
#include "worker/kv/store.h"

namespace runahead {
namespace {

constexpr int64_t kRowValues = 3 * 64, kTokens = 300, kStoreLayers = 2;

class QuantisedStoreTest : public ::testing::Test {
 protected:
  KvStoreOptions Options(const KvQuant& quant, DType dtype = DType::kF32) {
    KvStoreOptions options{.layers = kStoreLayers,
                           .row_bytes = kRowValues * static_cast<int64_t>(DTypeSize(dtype)),
                           .capacity_tokens = 4 * kKvBlockTokens};
    options.quantisation = KvQuantisation{quant, dtype, host_.get()};
    return options;
  }

  const std::shared_ptr<Device> host_ = *NewCpuDevice({.threads = 1});
  testing::FakeClock clock_;
};

std::vector<float> MadeUp(int64_t layer) {
  std::mt19937 random(static_cast<uint32_t>(layer));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(kTokens * kRowValues));
  for (float& value : values) value = normal(random);
  return values;
}

// Of rows [begin, end).
std::vector<std::byte> ReferenceBytes(const std::vector<float>& values, const KvQuant& quant) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(quant.group)) {
    const ReferenceGroup group = QuantizeReference(values.data() + i, quant);
    bytes.insert(bytes.end(), group.bytes.begin(), group.bytes.end());
  }
  return bytes;
}

// What those bytes stand for.
std::vector<float> ReadBack(const std::vector<float>& values, const KvQuant& quant) {
  std::vector<float> read;
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(quant.group)) {
    const ReferenceGroup group = QuantizeReference(values.data() + i, quant);
    read.insert(read.end(), group.values.begin(), group.values.end());
  }
  return read;
}

std::vector<std::byte> StoredBytes(const KvArena& arena, const KvStore::Sequence& sequence, int64_t layer) {
  std::vector<std::byte> bytes;
  for (const KvSpan& span : arena.Spans(sequence.blocks(), layer, 0, kTokens)) {
    bytes.insert(bytes.end(), span.rows.data(), span.rows.data() + span.rows.size);
  }
  return bytes;
}

// Of rows of the whole prompt, those of tokens [begin, end).
void SendBytes(KvStore& store, const LeaseId& lease, int64_t layer, const std::vector<std::byte>& rows, int64_t begin,
               int64_t end, SliceKind kind) {
  auto write = store.BeginWrite(lease, layer, begin, end, kind);
  ASSERT_TRUE(write.ok() && write->ready().Wait(testing::LongestWait()).ok());
  const std::byte* from = rows.data() + rows.size() / kTokens * static_cast<size_t>(begin);
  for (const BufferRef& to : write->destination()) {
    std::memcpy(to.data(), from, to.size);
    from += to.size;
  }
  ASSERT_TRUE(write->Commit().Wait(testing::LongestWait()).ok());
}

std::vector<std::byte> BytesOf(const std::vector<float>& values) {
  const auto* const from = reinterpret_cast<const std::byte*>(values.data());
  return {from, from + values.size() * sizeof(float)};
}

void Send(KvStore& store, const LeaseId& lease, int64_t layer, const std::vector<float>& values, int64_t begin,
          int64_t end) {
  SendBytes(store, lease, layer, BytesOf(values), begin, end, SliceKind::kKv);
}

TEST_F(QuantisedStoreTest, KeepsTheBytesOfTheReference) {
  for (const KvQuant quant : {KvQuant{4, 64}, KvQuant{8, 32}}) {
    SCOPED_TRACE(quant.bits);
    const auto store = KvStore::Create(Options(quant), *host_, clock_);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ((*store)->stats().capacity_bytes,
              kStoreLayers * 4 * kKvBlockTokens * (kRowValues / quant.group) * (4 + quant.group * quant.bits / 8));
    const LeaseId lease = *(*store)->Reserve({.prompt_tokens = kTokens, .total_tokens = kTokens + 1});
    for (int64_t layer = 0; layer < kStoreLayers; ++layer) {
      // Slices end anywhere, within blocks and beyond them; the last is sent twice.
      Send(**store, lease, layer, MadeUp(layer), 0, 1);
      Send(**store, lease, layer, MadeUp(layer), 200, 300);
      Send(**store, lease, layer, MadeUp(layer), 1, 200);
      Send(**store, lease, layer, MadeUp(layer), 1, 200);
    }
    const auto sequence = (*store)->Open(lease);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    for (int64_t layer = 0; layer < kStoreLayers; ++layer) {
      EXPECT_TRUE(StoredBytes((*store)->arena(), *sequence, layer) == ReferenceBytes(MadeUp(layer), quant)) << layer;
    }
  }
}

// As it comes, or from the codes in which it comes: then what these stand for is quantised.
TEST_F(QuantisedStoreTest, KeepsXInAsManyBitsInWhicheverFormItComes) {
  for (const RowForm arrives : {RowForm::kF32, RowForm::kQ8}) {
    for (const RowForm kept : {RowForm::kQ4, RowForm::kQ8}) {
      SCOPED_TRACE(absl::StrCat(std::string(RowFormName(arrives)), " kept in ", std::string(RowFormName(kept))));
      const KvQuant quant = QuantOf(kept);
      KvStoreOptions options = Options({quant.bits, 64});
      options.x_form = kept;
      options.x_row_bytes = RowFormBytes(kept, kRowValues);
      options.x_quantisation = XQuantisation{arrives, kRowValues, host_.get()};
      const auto store = KvStore::Create(options, *host_, clock_);
      ASSERT_TRUE(store.ok()) << store.status();
      const LeaseId lease = *(*store)->Reserve({.prompt_tokens = kTokens, .total_tokens = kTokens + 1, .with_x = true});
      for (int64_t layer = 0; layer < kStoreLayers; ++layer) {
        Send(**store, lease, layer, MadeUp(layer), 0, kTokens);
        const std::vector<float> x = MadeUp(7 + layer);
        const auto rows = arrives == RowForm::kF32 ? BytesOf(x) : ReferenceBytes(x, QuantOf(arrives));
        SendBytes(**store, lease, layer, rows, 280, kTokens, SliceKind::kX);
        SendBytes(**store, lease, layer, rows, 0, 280, SliceKind::kX);
      }
      EXPECT_EQ((*store)->stats().x.received_bytes, kStoreLayers * kTokens * RowFormBytes(arrives, kRowValues));
      const auto sequence = (*store)->Open(lease);
      ASSERT_TRUE(sequence.ok()) << sequence.status();
      for (int64_t layer = 0; layer < kStoreLayers; ++layer) {
        std::vector<float> x = MadeUp(7 + layer);
        if (arrives == RowForm::kQ8) x = ReadBack(x, QuantOf(arrives));
        EXPECT_TRUE(StoredBytes((*store)->arena(), *sequence, layer) ==
                    ReferenceBytes(MadeUp(layer), {quant.bits, 64}));
        EXPECT_TRUE(StoredBytes(*(*store)->x_arena(), *sequence, layer) == ReferenceBytes(x, quant)) << layer;
      }
    }
  }
}

// A block by reference, and of the begun one copied rows: the codes of the first prompt, quantised no second time.
TEST_F(QuantisedStoreTest, APromptBeginsWithTheCodesThatAnotherLeft) {
  const KvQuant quant{4, 64};
  const auto store = KvStore::Create(Options(quant), *host_, clock_);
  ASSERT_TRUE(store.ok()) << store.status();
  std::vector<int32_t> ids(kTokens);
  for (int64_t i = 0; i < kTokens; ++i) ids[i] = static_cast<int32_t>(i);
  std::vector<int32_t> block;
  {
    const LeaseId lease = *(*store)->Reserve({.prompt_tokens = kTokens, .total_tokens = kTokens});
    for (int64_t layer = 0; layer < kStoreLayers; ++layer) Send(**store, lease, layer, MadeUp(layer), 0, kTokens);
    KvStore::Sequence left = *(*store)->Open(lease);
    block.push_back(left.blocks().front());
    left.Keep(ids);
  }
  constexpr int64_t kKnown = 290;
  const LeaseId behind = *(*store)->Reserve({.prompt_tokens = kTokens,
                                             .total_tokens = kTokens,
                                             .least_known_tokens = kKnown,
                                             .rest_handed = true,
                                             .prompt_ids = ids});
  for (int64_t layer = 0; layer < kStoreLayers; ++layer) {
    Send(**store, behind, layer, MadeUp(layer), kKnown, kTokens);
  }
  KvStore::Sequence sequence = *(*store)->Open(behind);
  EXPECT_EQ(sequence.blocks().front(), block.front());
  for (const CopyPart& part : sequence.Copies()) std::memcpy(part.to.data(), part.from.data(), part.to.size);
  sequence.EndCopies();
  for (int64_t layer = 0; layer < kStoreLayers; ++layer) {
    EXPECT_TRUE(StoredBytes((*store)->arena(), sequence, layer) == ReferenceBytes(MadeUp(layer), quant)) << layer;
  }
}

TEST_F(QuantisedStoreTest, OneThatIsToldSoKeepsNothing) {
  KvStoreOptions options = Options({8, 64});
  options.keeps = false;
  const auto store = KvStore::Create(options, *host_, clock_);
  ASSERT_TRUE(store.ok()) << store.status();
  const LeaseId lease = *(*store)->Reserve({.prompt_tokens = kTokens, .total_tokens = kTokens});
  for (int64_t layer = 0; layer < kStoreLayers; ++layer) Send(**store, lease, layer, MadeUp(layer), 0, kTokens);
  {
    KvStore::Sequence left = *(*store)->Open(lease);
    left.Keep(std::vector<int32_t>(kTokens, 1));
  }
  EXPECT_EQ((*store)->stats().kept_bytes, 0);
}

TEST_F(QuantisedStoreTest, RefusesWhatCannotBeQuantised) {
  const auto refusal = [&](const KvStoreOptions& options) {
    const auto store = KvStore::Create(options, *host_, clock_);
    EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(store.status().message());
  };
  for (const int bits : {0, 3, 5, 16}) EXPECT_THAT(refusal(Options({bits, 64})), ::testing::HasSubstr("4 and 8 bits"));
  EXPECT_THAT(refusal(Options({4, 128})), ::testing::HasSubstr("whole groups")) << "192 values";
  KvStoreOptions on_device = Options({4, 64});
  on_device.tier = MemoryKind::kDevice;
  EXPECT_THAT(refusal(on_device), ::testing::HasSubstr("host memory"));
  KvStoreOptions with_x = Options({4, 64});
  with_x.x_form = RowForm::kQ4;
  with_x.x_row_bytes = 40;
  with_x.x_quantisation = XQuantisation{RowForm::kF32, 80, host_.get()};
  EXPECT_THAT(refusal(with_x), ::testing::HasSubstr("whole groups of 32")) << "80 values";
}

}  // namespace
}  // namespace runahead
