// Slices that a hand-off offers to a decode worker's store: headers of any content, for leases that come and go.
#include <fuzzer/FuzzedDataProvider.h>

#include <deque>

#include "tests/fuzz/fuzz.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_device.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/message_prefix.h"

namespace runahead {
namespace {

constexpr int64_t kLayers = 2, kRowBytes = 8, kBlocks = 4;
constexpr int kOperations = 100;

// A store, and writes that are under way in it.
class Receiver {
 public:
  explicit Receiver(FuzzedDataProvider& from)
      : from_(from),
        store_(*KvStore::Create({kLayers, kRowBytes, kBlocks * kKvBlockTokens, 99}, device_, clock_)),
        receiver_(*store_, {}) {}
  ~Receiver() {
    while (!writes_.empty()) End(/*commit=*/false);
    for (const LeaseId& lease : leases_) store_->Release(lease);
    RUNAHEAD_CHECK(asked_ == answered_);
    RUNAHEAD_CHECK(store_->stats().leases == 0 && store_->stats().used_bytes == 0);
  }

  void Step() {
    switch (from_.ConsumeIntegralInRange<int>(0, 5)) {
      case 0:
        return Reserve();
      case 1:
        if (!leases_.empty()) store_->Release(PickLease());
        return;
      case 2:
        return End(/*commit=*/true);
      case 3:
        return End(/*commit=*/false);
      default:
        return Offer();
    }
  }

 private:
  void Reserve() {
    const auto lease = store_->Reserve(
        {.prompt_tokens = from_.ConsumeIntegral<int16_t>(), .total_tokens = from_.ConsumeIntegral<int16_t>()});
    if (lease.ok()) {
      leases_.push_back(*lease);
    } else {
      fuzz::CheckRefusal(lease.status(), "");
    }
  }

  LeaseId PickLease() { return leases_[from_.ConsumeIntegralInRange<size_t>(0, leases_.size() - 1)]; }

  Slice AnySlice() {
    if (from_.ConsumeBool()) {
      const std::string header = from_.ConsumeBytesAsString(sizeof(SliceWire));
      const auto slice = UnpackSlice(header);
      RUNAHEAD_CHECK(slice.has_value() == (header.size() == sizeof(SliceWire)));
      CheckAsk(header);
      if (slice) return *slice;
    }
    Slice slice;
    if (!leases_.empty()) slice.lease = PickLease();
    slice.layer = from_.ConsumeIntegralInRange<int32_t>(-1, kLayers);
    slice.begin = from_.ConsumeIntegralInRange<int64_t>(-1, 600);
    slice.end = slice.begin + from_.ConsumeIntegralInRange<int64_t>(-1, 300);
    const auto again = UnpackSlice(PackSlice(slice));
    RUNAHEAD_CHECK(again && Describe(*again) == Describe(slice) && SeedOf(*again) == SeedOf(slice));
    return slice;
  }

  // Of a head that asks for rows, with whatever follows the slice's header as its address.
  void CheckAsk(const std::string& header) {
    const std::string address = from_.ConsumeRandomLengthString(30);
    const auto ask = UnpackAsk(header + address);
    const bool whole = header.size() == sizeof(SliceWire) && !address.empty();
    RUNAHEAD_CHECK(!whole || (ask && PackAsk(*ask).size() == header.size() + address.size()));
    if (ask) RUNAHEAD_CHECK(!ask->address.empty());
  }

  void Offer() {
    SliceHeader header{AnySlice(), 0, from_.ConsumeIntegral<uint8_t>()};
    const auto tokens = static_cast<uint64_t>(header.slice.end) - static_cast<uint64_t>(header.slice.begin);
    header.bytes = from_.ConsumeBool() ? tokens * kRowBytes : from_.ConsumeIntegral<uint64_t>();
    ++asked_;
    receiver_.Begin(header, [this, header](const SliceReceiver::Outcome& outcome) {
      ++answered_;
      if (const auto* write = std::get_if<SliceReceiver::Write>(&outcome)) Take(header, *write);
    });
  }

  // Where bytes are to go there is room for so many.
  void Take(const SliceHeader& header, const SliceReceiver::Write& write) {
    uint64_t bytes = 0;
    for (const BufferRef& piece : write->destination()) {
      std::memset(piece.data(), 0x5A, piece.size);
      bytes += piece.size;
    }
    RUNAHEAD_CHECK(bytes == header.bytes);
    writes_.push_back({header, write});
  }

  void End(bool commit) {
    if (writes_.empty()) return;
    auto [header, write] = writes_.front();
    writes_.pop_front();
    if (!commit) return receiver_.Abandon(write);
    const bool damaged = header.sum % 4 == 3;
    header.sum = SumPieces(SeedOf(header.slice), write->destination()) + (damaged ? 1 : 0);
    bool told = false;
    receiver_.Finish(header, write, [&told, damaged](SliceVerdict verdict) {
      told = true;
      RUNAHEAD_CHECK(damaged == (verdict == SliceVerdict::kCorrupt));
    });
    RUNAHEAD_CHECK(told);
  }

  struct Open {
    SliceHeader header;
    SliceReceiver::Write write;
  };

  FuzzedDataProvider& from_;
  testing::FakeDevice device_;
  testing::FakeClock clock_;
  const std::unique_ptr<KvStore> store_;
  SliceReceiver receiver_;
  std::vector<LeaseId> leases_;
  std::deque<Open> writes_;
  int asked_ = 0, answered_ = 0;
};

}  // namespace

void Fuzz(std::string_view input) {
  FuzzedDataProvider from(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  Receiver receiver(from);
  for (int i = 0; i < kOperations && from.remaining_bytes() > 0; ++i) receiver.Step();
}

}  // namespace runahead
