// What a decode step allocates does not grow with rows times layers. This program counts all allocations, of all
// threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "worker/decode/decode_loop.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// Not inlined: a compiler that sees into one of the two takes them for a mismatch.
__attribute__((noinline)) void* operator new(size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept {
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace runahead {
namespace {

constexpr int64_t kPromptTokens = 600;

// Of one step of `batch` sequences, when the memory of earlier ones is there: the least of some, for a queue between
// threads takes memory when it is long.
int64_t AllocationsOfAStep(int64_t layers, int64_t batch) {
  const LoadedModel loaded =
      LoadForTest(WriteSynthetic(SmallModel(layers), absl::StrCat("allocations", layers)), DType::kF32, 2);
  DeviceMemory memory(loaded.device);
  const auto store = *KvStore::Create(
      {.layers = layers, .row_bytes = loaded.model->kv_row_bytes(), .capacity_tokens = batch * 4 * kKvBlockTokens},
      *loaded.device, RealClock());
  DecodeLoop loop(*loaded.model, *loaded.device, *store, memory.stream());
  std::vector<KvStore::Sequence> sequences;
  for (int64_t i = 0; i < batch; ++i) {
    const LeaseId lease = *store->Reserve({.prompt_tokens = kPromptTokens, .total_tokens = kPromptTokens + 10});
    for (int64_t layer = 0; layer < layers; ++layer) {
      auto write = store->BeginWrite(lease, layer, 0, kPromptTokens);
      for (const BufferRef& to : write->destination()) std::memset(to.data(), 0, to.size);
      EXPECT_TRUE(write->Commit().Wait().ok());
    }
    sequences.push_back(*store->Open(lease));
  }
  std::vector<DecodeRow> rows;
  for (const KvStore::Sequence& sequence : sequences) rows.push_back({&sequence, 7, kPromptTokens});
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int step = 0; step < 8; ++step) {
    const int64_t before = allocations;
    EXPECT_TRUE(loop.Step(rows).ok());
    memory.Finish();
    least = std::min<int64_t>(least, allocations - before);
  }
  return least;
}

TEST(StepAllocations, DoNotGrowWithRowsTimesLayers) {
  constexpr int64_t kRows = 24, kLayers = 4;  // more than in the other step
  const int64_t few = AllocationsOfAStep(2, 1), deep = AllocationsOfAStep(2 + kLayers, 1);
  const int64_t wide = AllocationsOfAStep(2, 1 + kRows), both = AllocationsOfAStep(2 + kLayers, 1 + kRows);
  // Layers more cost the same, however many rows there are. One allocation a row and layer would be 96 more.
  EXPECT_LT((both - wide) - (deep - few), kRows * kLayers / 8) << few << " " << deep << " " << wide << " " << both;
}

}  // namespace
}  // namespace runahead
