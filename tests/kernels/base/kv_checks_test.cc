// Of checks.h: layouts, and the ops that take a KV table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/base/checks.h"
#include "tests/kernels/base/checked.h"

namespace runahead {
namespace {

using checked::Bytes;
using checked::kDTypes;
using checked::kLimits;
using checked::Make;
using checked::Refused;

struct SomeTable : KvTable {
  explicit SomeTable(KvLayout layout, int64_t pieces = 0) : KvTable(std::move(layout), pieces) {}
};

TEST(KvChecks, LayoutsListThePagesOfTheirSequences) {
  KvLayout good{.page_tokens = 16, .pages = {4, 0}, .sequences = {{.queries = 3, .length = 32, .end = 32}}};
  EXPECT_TRUE(CheckKvLayout(good).ok());
  EXPECT_TRUE(CheckKvLayout({.page_tokens = 16, .pages = {}, .sequences = {}}).ok());
  const auto refused = [&](const auto& change) {
    KvLayout bad = good;
    change(bad, bad.sequences[0]);
    return CheckKvLayout(bad);
  };
  EXPECT_THAT(refused([](KvLayout& all, KvSequence&) { all.page_tokens = 0; }), Refused({"pages of 0 rows"}));
  EXPECT_THAT(refused([](KvLayout& all, KvSequence&) { all.pages[1] = -1; }), Refused({"page 1 is -1"}));
  EXPECT_THAT(refused([](KvLayout&, KvSequence& of) { of.queries = 0; }), Refused({"0 queries"}));
  EXPECT_THAT(refused([](KvLayout&, KvSequence& of) { of.queries = 33; }), Refused({"33 queries", "32 positions"}));
  EXPECT_THAT(refused([](KvLayout&, KvSequence& of) { of.length = of.end = int64_t{1} << 31; }),
              Refused({"2147483648 positions"}));
  EXPECT_THAT(refused([](KvLayout&, KvSequence& of) { of.length = of.end = 33; }), Refused({"pages 0 to 3 of 2"}));
  EXPECT_THAT(refused([](KvLayout&, KvSequence& of) { of.first_page = 1; }), Refused({"pages 1 to 3 of 2"}));
  EXPECT_THAT(refused([](KvLayout&, KvSequence& of) { of.first_page = -1; }), Refused({"pages -1 to 1 of 2"}));
  EXPECT_THAT(refused([](KvLayout&, KvSequence& of) { of.dense_length = 31; }),
              Refused({"dense rectangle of 31", "32"}));
  EXPECT_THAT(refused([](KvLayout&, KvSequence& of) { of.dense_length = 33; }), Refused({"pages 0 to 3 of 2"}));
}

TEST(KvChecks, RangesEndAtBordersOfPagesAndPieces) {
  const auto check = [](int64_t page_tokens, int64_t length, int64_t begin, int64_t end, int64_t queries = 1,
                        bool by_pieces = false) {
    return CheckKvLayout({.page_tokens = page_tokens,
                          .pages = std::vector<int32_t>(2000),
                          .sequences = {{.queries = queries, .length = length, .begin = begin, .end = end}},
                          .by_pieces = by_pieces});
  };
  EXPECT_TRUE(check(16, 1000, 256, 768).ok());
  EXPECT_TRUE(check(256, 1000, 768, 1000).ok());
  EXPECT_TRUE(check(16, 1000, 256, 256).ok()) << "nothing of it";
  EXPECT_TRUE(check(16, 20'000, 512, 20'000).ok());
  EXPECT_THAT(check(16, 1000, 16, 1000), Refused({"position 16", "pages of 16", "pieces of 256"}));
  EXPECT_THAT(check(16, 1000, 0, 999), Refused({"position 999"}));
  EXPECT_THAT(check(512, 1000, 256, 1000), Refused({"position 256", "pages of 512"}));
  EXPECT_THAT(check(16, 20'000, 256, 20'000), Refused({"position 256", "pieces of 512"}));
  EXPECT_THAT(check(16, 1000, 512, 256), Refused({"positions 512 to 256 of 1000"}));
  EXPECT_THAT(check(16, 1000, -256, 256), Refused({"positions -256"}));
  EXPECT_THAT(check(16, 1000, 0, 1024), Refused({"positions 0 to 1024 of 1000"}));
  EXPECT_THAT(check(16, 1000, 0, 512, 2), Refused({"2 queries", "0 to 512 only"}));
  EXPECT_TRUE(check(16, 1000, 0, 512, 2, /*by_pieces=*/true).ok());
  EXPECT_TRUE(check(16, 1000, 256, 256, 2, /*by_pieces=*/true).ok());
  EXPECT_THAT(check(16, 16'385, 256, 16'385, 2, /*by_pieces=*/true), Refused({"position 256", "pieces of 512"}))
      << "a border for all of its queries";
}

TEST(KvChecks, QueriesByPiecesHaveNoDenseRectangle) {
  KvLayout layout = KvLayout::OnePage(2, 5, 7);
  EXPECT_TRUE(CheckKvLayout(layout).ok());
  layout.by_pieces = true;
  EXPECT_THAT(CheckKvLayout(layout), Refused({"dense rectangle of 2 queries"}));
}

TEST(KvChecks, ARotationIsOfAnEvenNumberOfAHeadsElements) {
  const Tensor x = Make(2, 12);
  const SomeTable table(KvLayout::OnePage(3, 5));  // positions 2, 3, 4
  EXPECT_TRUE(CheckRope(x, 6, {.table = Make(5, 6)}, table, 1).ok());
  EXPECT_TRUE(CheckRope(x, 6, {.table = Make(4, 2), .interleaved = true}, table, 0).ok());
  EXPECT_THAT(CheckRope(x, 5, {.table = Make(5, 4)}, table, 0), Refused({"12 columns", "heads of 5"}));
  for (const int64_t columns : {0, 3, 8}) {
    EXPECT_THAT(CheckRope(x, 6, {.table = Make(5, columns)}, table, 0), Refused({"rotation", "even", "6"})) << columns;
  }
  EXPECT_THAT(CheckRope(x, 6, {.table = Make(5, 6, DType::kBF16)}, table, 0), Refused({"rotation is bf16"}));
  EXPECT_THAT(CheckRope(x, 6, {.table = Make(5, 6)}, table, 2), Refused({"rows 2 to 4", "table of 3"}));
  EXPECT_THAT(CheckRope(x, 6, {.table = Make(5, 6)}, table, -1), Refused({"rows -1 to 1"}));
  EXPECT_THAT(CheckRope(x, 6, {.table = Make(4, 6)}, table, 1), Refused({"position 4 of a rotation of 4"}));
  EXPECT_TRUE(CheckRope(Make(2, 12, DType::kBF16), 6, {.table = Make(5, 6)}, table, 0).ok());
}

TEST(KvChecks, QkvIsWholeOrWithoutQ) {
  const AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = 8};
  const Tensor qkv = Make(3, 32), q = Make(3, 16, DType::kBF16);
  const SomeTable table(KvLayout::OnePage(4, 7));
  const BufferRef layer = Bytes(7 * shape.kv_row_bytes());
  EXPECT_TRUE(CheckStoreQkv(kLimits, qkv, shape, q, table, 1, layer).ok());
  EXPECT_TRUE(CheckStoreQkv(kLimits, qkv.Cols(16, 16), shape, {}, table, 0, layer).ok());
  EXPECT_THAT(CheckStoreQkv(kLimits, qkv, shape, {}, table, 0, layer), Refused({"qkv", "[3, 16]"}));
  EXPECT_THAT(CheckStoreQkv(kLimits, qkv.Cols(16, 16), shape, q, table, 0, layer), Refused({"qkv", "[3, 32]"}));
  EXPECT_THAT(CheckStoreQkv(kLimits, qkv, shape, Make(2, 16), table, 0, layer), Refused({"q is [2, 16]"}));
  EXPECT_THAT(CheckStoreQkv(kLimits, qkv, shape, Make(3, 16, DType::kF16), table, 0, layer), Refused({"q is f16"}));
  EXPECT_THAT(CheckStoreQkv(kLimits, Make(3, 32, DType::kBF16), shape, q, table, 0, layer), Refused({"qkv is bf16"}));
  AttentionShape odd = shape;
  odd.head_dim = 7;
  EXPECT_THAT(CheckStoreQkv(kLimits, qkv, odd, q, table, 0, layer), Refused({"head_dim is 7"}));
}

TEST(KvChecks, KvIsStoredWhereTheTableHasIt) {
  const AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = 8};
  const auto check = [&](const KvLayout& layout, int64_t first_row, size_t layer_rows) {
    return CheckStoreQkv(kLimits, Make(1, 16), shape, {}, SomeTable(layout), first_row,
                         Bytes(layer_rows * shape.kv_row_bytes()));
  };
  const KvLayout pages{.page_tokens = 16, .pages = {3, 1}, .sequences = {{.length = 20, .end = 20}}};
  EXPECT_TRUE(check(pages, 0, 64).ok());
  EXPECT_THAT(check(pages, 0, 63), Refused({"4032 bytes", "64 rows of 64"}));
  EXPECT_THAT(check(pages, 1, 64), Refused({"rows 1 to 2", "table of 1"}));
  const KvLayout older{.page_tokens = 256, .pages = {0}, .sequences = {{.length = 300, .end = 256}}};
  EXPECT_THAT(check(older, 0, 256), Refused({"row 0", "position 299", "does not have"}));
  BufferRef beyond = Bytes(64 * shape.kv_row_bytes());
  beyond.offset = 128;
  EXPECT_THAT(CheckStoreQkv(kLimits, Make(1, 16), shape, {}, SomeTable(pages), 0, beyond), Refused({"layer's KV"}));
}

constexpr AttentionShape kShape{.heads = 2, .kv_heads = 1, .head_dim = 8};

TEST(KvChecks, AttentionLimitsAreTheDevices) {
  const Tensor q = Make(1, 16);
  const SomeTable table(KvLayout::OnePage(1, 1));
  const BufferRef layer = Bytes(kShape.kv_row_bytes());
  EXPECT_TRUE(CheckAttention(kLimits, q, kShape, table, layer, q).ok());
  EXPECT_THAT(CheckAttention({.dtypes = kDTypes, .kv_dtypes = kDTypes, .head_dim_multiple = 16, .most_head_dim = 64}, q,
                             kShape, table, layer, q),
              Refused({"head_dim is 8", "multiple of 16"}));
  EXPECT_THAT(CheckAttention({.dtypes = kDTypes, .kv_dtypes = kDTypes, .most_head_dim = 6}, q, kShape, table, layer, q),
              Refused({"up to 6"}));
  AttentionShape bad = kShape;
  bad.kv_dtype = DType::kF16;
  EXPECT_THAT(CheckAttention(kLimits, q, bad, table, layer, q), Refused({"f16"}));
  bad = kShape;
  bad.scale = 0;
  EXPECT_THAT(CheckAttention(kLimits, q, bad, table, layer, q), Refused({"scale is 0"}));
}

TEST(KvChecks, AttentionHasARowForEveryQueryAndAllPositions) {
  const BufferRef layer = Bytes(300 * kShape.kv_row_bytes());
  const Tensor two = Make(2, 16), one = Make(1, 16);
  const SomeTable table(KvLayout::OnePage(2, 300));
  EXPECT_TRUE(CheckAttention(kLimits, two, kShape, table, layer, two).ok());
  EXPECT_THAT(CheckAttention(kLimits, one, kShape, table, layer, two), Refused({"q is [1, 16]", "[2, 16]"}));
  EXPECT_THAT(CheckAttention(kLimits, two, kShape, table, layer, one), Refused({"out is [1, 16]"}));
  EXPECT_THAT(CheckAttention(kLimits, two, kShape, table, Bytes(299 * kShape.kv_row_bytes()), two),
              Refused({"300 rows of 64"}));
  const SomeTable part({.page_tokens = 256, .pages = {0}, .sequences = {{.length = 300, .end = 256}}});
  EXPECT_THAT(CheckAttention(kLimits, one, kShape, part, layer, one), Refused({"0 to 256 only, of 300"}));
}

TEST(KvChecks, PiecesOfPromptsAreOfOneQueryEach) {
  const BufferRef layer = Bytes(300 * kShape.kv_row_bytes());
  const Tensor one = Make(1, 16), partials = Make(4, 18);
  const SomeTable table(KvLayout::OnePage(1, 300), 4), prompt(KvLayout::OnePage(2, 300), 4);
  EXPECT_TRUE(CheckAttendPieces(kLimits, one, kShape, table, layer, partials).ok());
  EXPECT_TRUE(CheckMergePieces(kLimits, partials, kShape, table, one).ok());
  EXPECT_THAT(CheckAttendPieces(kLimits, Make(2, 16), kShape, prompt, layer, partials), Refused({"one query", "2"}));
  EXPECT_THAT(CheckMergePieces(kLimits, partials, kShape, prompt, Make(2, 16)), Refused({"one query", "2"}));
  KvLayout by_pieces = KvLayout::OnePage(2, 300);
  by_pieces.by_pieces = true;
  const SomeTable rows(std::move(by_pieces), 4);
  EXPECT_TRUE(CheckAttendPieces(kLimits, Make(2, 16), kShape, rows, layer, partials).ok());
  EXPECT_TRUE(CheckMergePieces(kLimits, partials, kShape, rows, Make(2, 16)).ok());
  for (const Tensor& bad : {Make(2, 18), Make(4, 17), Make(4, 18, DType::kBF16)}) {
    EXPECT_THAT(CheckAttendPieces(kLimits, one, kShape, table, layer, bad), Refused({"partials is"}));
    EXPECT_THAT(CheckMergePieces(kLimits, bad, kShape, table, one), Refused({"partials is"}));
  }
  EXPECT_THAT(CheckAttendPieces(kLimits, Make(1, 8), kShape, table, layer, partials), Refused({"q is [1, 8]"}));
  EXPECT_THAT(CheckMergePieces(kLimits, partials, kShape, table, Make(2, 16)), Refused({"out is [2, 16]"}));
  EXPECT_THAT(CheckAttendPieces(kLimits, one, kShape, table, Bytes(100), partials), Refused({"100 bytes", "300 rows"}));
}

TEST(KvChecks, RowsOfPromptsHaveNoPieces) {
  const BufferRef layer = Bytes(300 * kShape.kv_row_bytes());
  const Tensor one = Make(1, 16), partials = Make(4, 18);
  KvLayout layout = KvLayout::OnePage(1, 300);
  layout.of_prompts = true;
  const SomeTable table(layout, 4);
  EXPECT_TRUE(CheckAttention(kLimits, one, kShape, table, layer, one).ok());
  EXPECT_THAT(CheckAttendPieces(kLimits, one, kShape, table, layer, partials), Refused({"prompts' rows"}));
  EXPECT_THAT(CheckMergePieces(kLimits, partials, kShape, table, one), Refused({"prompts' rows"}));
  layout.by_pieces = true;
  EXPECT_THAT(CheckKvLayout(layout), Refused({"prompts by pieces"}));
}

TEST(KvChecks, WindowsAndSoftCapsArePositiveOrNone) {
  const Tensor q = Make(1, 16);
  const BufferRef layer = Bytes(kShape.kv_row_bytes());
  AttentionShape shape = kShape;
  shape.window = 3;
  shape.soft_cap = 20;
  const SomeTable table(KvLayout::OnePage(1, 1)), dense(KvLayout::OnePage(1, 1, 1));
  const auto check = [&](const KvTable& of) { return CheckAttention(kLimits, q, shape, of, layer, q); };
  EXPECT_TRUE(check(table).ok());
  EXPECT_THAT(check(dense), Refused({"dense rectangle", "window of 3"}));
  shape.window = -1;
  EXPECT_THAT(check(table), Refused({"window of -1"}));
  shape.window = 0;
  EXPECT_TRUE(check(dense).ok());
  for (const float bad : {-1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    shape.soft_cap = bad;
    EXPECT_THAT(check(table), Refused({"soft cap"}));
  }
}

}  // namespace
}  // namespace runahead
