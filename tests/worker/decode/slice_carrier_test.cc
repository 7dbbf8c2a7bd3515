// Rows of a moving sequence as slices of a hand-off: which ones, and what their answers come to.
#include "worker/decode/slice_carrier.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_device.h"
#include "worker/handoff/epoch_sender.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMovedLayers = 2, kMovedRowBytes = 8;

// Keeps what is pushed; the test answers.
class KeepingSender final : public HandoffSender {
 public:
  struct Pushed {
    PeerId to;
    Slice slice;
    std::string bytes;
    EventSource answer;
  };
  explicit KeepingSender(std::vector<Pushed>& pushed, std::vector<LeaseId>& cancelled)
      : pushed_(pushed), cancelled_(cancelled) {}
  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) override {
    EXPECT_TRUE(after.fired());
    pushed_.push_back(
        {decode, slice, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size), EventSource()});
    return pushed_.back().answer.event();
  }
  void Cancel(const LeaseId& lease) override { cancelled_.push_back(lease); }

 private:
  std::vector<Pushed>& pushed_;
  std::vector<LeaseId>& cancelled_;
};

class SliceCarrierTest : public ::testing::Test {
 protected:
  SliceCarrierTest()
      : store_(*KvStore::Create({kMovedLayers, kMovedRowBytes, 8 * kKvBlockTokens, 9}, device_, clock_)),
        sender_(std::make_shared<EpochSender>(std::make_unique<KeepingSender>(pushed_, cancelled_))) {}

  // Its blocks do not follow each other, and each byte of a row says the row and the layer.
  KvStore::Sequence OpenFilled(int64_t tokens) {
    const LeaseId between = *store_->Reserve({.prompt_tokens = 1, .total_tokens = 1});
    const LeaseId lease = *store_->Reserve({.prompt_tokens = tokens, .total_tokens = tokens});
    store_->Release(between);
    for (int64_t layer = 0; layer < kMovedLayers; ++layer) {
      auto write = store_->BeginWrite(lease, layer, 0, tokens);
      int64_t row = 0;
      for (const BufferRef& to : write->destination()) {
        for (size_t at = 0; at < to.size; at += kMovedRowBytes, ++row) {
          std::memset(to.data() + at, static_cast<int>(row * kMovedLayers + layer), kMovedRowBytes);
        }
      }
      EXPECT_EQ(write->Commit().Wait(), absl::OkStatus());
    }
    return *store_->Open(lease);
  }
  std::shared_ptr<SequenceCarrier> Carrier(std::vector<int64_t> hidden = {}) {
    return MakeSliceCarrier(sender_, {{"there", 5}, {5, 77}}, RowForm::kF16, kMovedLayers, std::move(hidden));
  }
  void Send(SequenceCarrier& carrier, KvStore::Lent rows) {
    carrier.Send(std::move(rows), [this](absl::StatusOr<int64_t> bytes) { outcomes_.push_back(std::move(bytes)); });
  }
  // Of all slices of a layer, in order: [begin, end) as pushed, with the bytes that the rows must have.
  void ExpectRows(int64_t layer, int64_t begin, int64_t end) {
    int64_t at = begin;
    for (const auto& pushed : pushed_) {
      if (pushed.slice.layer != layer) continue;
      EXPECT_EQ(pushed.slice.begin, at);
      for (; at < pushed.slice.end; ++at) {
        const std::string row(kMovedRowBytes, static_cast<char>(at * kMovedLayers + layer));
        ASSERT_EQ(pushed.bytes.substr((at - pushed.slice.begin) * kMovedRowBytes, kMovedRowBytes), row) << at;
      }
    }
    EXPECT_EQ(at, end);
  }

  testing::FakeDevice device_;
  testing::FakeClock clock_;
  std::unique_ptr<KvStore> store_;
  std::vector<KeepingSender::Pushed> pushed_;
  std::vector<LeaseId> cancelled_;
  std::shared_ptr<EpochSender> sender_;
  std::vector<absl::StatusOr<int64_t>> outcomes_;
};

TEST_F(SliceCarrierTest, AllLayersGoAndItIsDoneWithTheLastAnswer) {
  const KvStore::Sequence sequence = OpenFilled(600);
  const auto carrier = Carrier();
  Send(*carrier, sequence.Lend(250, 520));
  for (int64_t layer = 0; layer < kMovedLayers; ++layer) ExpectRows(layer, 250, 520);
  for (const auto& pushed : pushed_) {
    EXPECT_EQ(pushed.to.incarnation, 5u);
    EXPECT_EQ(pushed.slice.lease, (LeaseId{5, 77}));
    EXPECT_EQ(pushed.slice.form, RowForm::kF16);
    EXPECT_EQ(pushed.slice.kind, SliceKind::kKv);
  }
  for (const auto& pushed : pushed_) {
    EXPECT_TRUE(outcomes_.empty());
    pushed.answer.Fire(absl::OkStatus());
  }
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(*outcomes_[0], kMovedLayers * 270 * kMovedRowBytes);
}

TEST_F(SliceCarrierTest, WhatAWindowHidesIsLeftOut) {
  const KvStore::Sequence sequence = OpenFilled(600);
  const auto carrier = Carrier({0, 400});
  Send(*carrier, sequence.Lend(0, 300));
  ExpectRows(0, 0, 300);
  for (const auto& pushed : pushed_) EXPECT_EQ(pushed.slice.layer, 0);
  for (const auto& pushed : pushed_) pushed.answer.Fire(absl::OkStatus());
  EXPECT_EQ(*outcomes_.at(0), 300 * kMovedRowBytes);
  pushed_.clear();
  Send(*carrier, sequence.Lend(300, 600));
  ExpectRows(1, 400, 600);
  for (const auto& pushed : pushed_) pushed.answer.Fire(absl::OkStatus());
}

TEST_F(SliceCarrierTest, AFailureIsToldWhenNothingIsReadAnyMore) {
  const KvStore::Sequence sequence = OpenFilled(300);
  const auto carrier = Carrier();
  Send(*carrier, sequence.Lend(0, 300));
  pushed_.front().answer.Fire(absl::NotFoundError("no such lease"));
  EXPECT_TRUE(outcomes_.empty());
  carrier->Cancel();
  EXPECT_THAT(cancelled_, ElementsAre(LeaseId{5, 77}));
  for (size_t i = 1; i < pushed_.size(); ++i) pushed_[i].answer.Fire(absl::CancelledError("not on the wire yet"));
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_TRUE(absl::IsNotFound(outcomes_[0].status())) << "the first one";
}

TEST_F(SliceCarrierTest, BehindTheEpochsEndItFailsAtOnce) {
  const KvStore::Sequence sequence = OpenFilled(10);
  const auto carrier = Carrier();
  sender_->End();
  Send(*carrier, sequence.Lend(0, 10));
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(outcomes_[0].status()));
  carrier->Cancel();
  EXPECT_TRUE(pushed_.empty() && cancelled_.empty());
}

}  // namespace
}  // namespace runahead
