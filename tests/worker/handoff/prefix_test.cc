// Rows that a lease began with, from the decode worker's store to the head of a chain: over TCP, through pinned memory
// of devices that the host cannot read, and within one process; and from stores that quantise.
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/await.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/handoff_faults.h"
#include "tests/testing/patience.h"
#include "tests/testing/reference_kv_quant.h"
#include "tests/testing/remote_device.h"
#include "tests/worker/link/host_buffer.h"
#include "tests/worker/link/new_engine.h"
#include "worker/handoff/in_process_prefix.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/message_prefix.h"

namespace runahead::testing {
namespace {

constexpr int64_t kPrefixLayers = 3;
constexpr int64_t kPrefixRowValues = 32;
constexpr int64_t kPrefixRowBytes = kPrefixRowValues * sizeof(float);
constexpr KvQuant kPrefixQuant{.bits = 8, .group = 32};
constexpr int64_t kKnown = 2 * kKvBlockTokens;  // in two blocks that do not touch
constexpr int64_t kPrompt = kKnown + 100;
constexpr size_t kPrefixStaging = 8 * 1024;  // less than a layer's rows

// A decode worker's engine whose rows the test damages or holds back.
class TamperedEngine final : public MessageEngine {
 public:
  explicit TamperedEngine(HandoffFaults& faults) : faults_(faults) {}
  const PeerId& self() const override { return engine_->self(); }
  void SetHandler(MessageKind kind, Handler handler) override { engine_->SetHandler(kind, std::move(handler)); }
  void Connect(const PeerId& peer, Done on_death) override { engine_->Connect(peer, std::move(on_death)); }
  void Send(const PeerId& peer, MessageKind kind, std::string header, Outbound bytes, Done done) override {
    if (kind != MessageKind::kPrefixRows) return engine_->Send(peer, kind, std::move(header), std::move(bytes), done);
    if (bytes.lane == nullptr) bytes = faults_.Tamper(std::move(bytes));
    faults_.Answer([this, peer, kind, header = std::move(header), bytes = std::move(bytes), done] {
      engine_->Send(peer, kind, header, bytes, done);
    });
  }
  void Break(const PeerKey& peer, const absl::Status& why) override { engine_->Break(peer, why); }
  void Close(const PeerKey& peer) override { engine_->Close(peer); }
  void CloseAll(const std::function<bool(const PeerKey&)>& which) override { engine_->CloseAll(which); }
  void Stop() override { engine_->Stop(); }
  std::string Transport(const PeerId& peer) override { return engine_->Transport(peer); }

 private:
  HandoffFaults& faults_;
  const std::unique_ptr<MessageEngine> engine_ = NewEngine();
};

enum class PrefixWay { kTcp, kStaged, kInProcess, kInProcessOnDevice, kTcpOpened, kInProcessOpened, kOnDeviceOpened };

std::string NameOf(PrefixWay way) {
  const char* const names[] = {"Tcp",       "Staged",          "InProcess",     "InProcessOnDevice",
                               "TcpOpened", "InProcessOpened", "OnDeviceOpened"};
  return names[static_cast<int>(way)];
}

// A decode worker with a lease that began with kKnown tokens, and a head's loader.
class PrefixWorld {
 public:
  explicit PrefixWorld(PrefixWay way)
      : on_device(way == PrefixWay::kStaged || way == PrefixWay::kInProcessOnDevice ||
                  way == PrefixWay::kOnDeviceOpened),
        in_process(way == PrefixWay::kInProcess || way == PrefixWay::kInProcessOnDevice ||
                   way >= PrefixWay::kInProcessOpened),
        quantises(way >= PrefixWay::kTcpOpened) {
    KvStoreOptions options{.layers = kPrefixLayers,
                           .row_bytes = kPrefixRowBytes,
                           .capacity_tokens = 8 * kKvBlockTokens,
                           .incarnation = 77,
                           .tier = on_device && !quantises ? MemoryKind::kDevice : MemoryKind::kHost};
    if (quantises) options.quantisation = KvQuantisation{kPrefixQuant, DType::kF32, host.get()};
    store = *KvStore::Create(options, Home(), clock);
    Know();
    if (on_device) {
      going = StagingLane::Create(gpu, "lent", kPrefixStaging);
      coming = StagingLane::Create(HeadGpu(), "prefix", kPrefixStaging);
    }
    if (in_process) {
      loader = MakeInProcessPrefixLoader(*store, coming);
      return;
    }
    decode = std::make_unique<TamperedEngine>(faults);
    head = NewEngine();
    lender = std::make_unique<PrefixLender>(*decode, *store, PrefixLenderOptions{.lane = going});
    loader = MakeMessagePrefixLoader(*head, {.lane = coming, .on_damaged = [this] { ++damaged; }});
  }
  ~PrefixWorld() {
    loader.reset();
    lender.reset();
    for (const auto& lane : {going, coming}) {
      if (lane != nullptr) lane->Stop();
    }
  }

  // As they are handed off, and as they are lent.
  static std::vector<float> Handed(int64_t layer) {
    std::mt19937 random(static_cast<uint32_t>(layer));
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(kKnown * kPrefixRowValues));
    for (float& value : values) value = normal(random);
    return values;
  }
  std::string Rows(int64_t layer) const {
    std::vector<float> values = Handed(layer);
    for (size_t i = 0; quantises && i < values.size(); i += kPrefixQuant.group) {
      const ReferenceGroup group = QuantizeReference(values.data() + i, kPrefixQuant);
      std::copy(group.values.begin(), group.values.end(), values.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
  Slice Wanted(int32_t layer, int64_t begin = 0) const { return {lease, layer, begin, kKnown}; }
  BufferRef Place(int64_t begin = 0) {
    const size_t bytes = (kKnown - begin) * kPrefixRowBytes;
    return on_device ? HeadGpu().Room(bytes) : Room(bytes);
  }
  std::string Peek(const BufferRef& ref) { return on_device ? HeadGpu().Peek(ref) : std::string(Bytes(ref)); }
  RemoteDevice& HeadGpu() { return in_process ? gpu : head_gpu; }
  PeerId Decode() const { return decode == nullptr ? PeerId{"here", 77} : decode->self(); }
  Event Load(const Slice& rows, const BufferRef& into) { return loader->Load(Decode(), rows, into); }

  const bool on_device, in_process, quantises;
  const std::shared_ptr<Device> host = *NewCpuDevice({.threads = 1});  // outlives the store
  RemoteDevice gpu, head_gpu;  // of who decodes, and of the head in another process
  FakeDevice cpu;
  FakeClock clock;
  HandoffFaults faults;
  std::atomic<int> damaged = 0;
  std::unique_ptr<KvStore> store;
  std::unique_ptr<MessageEngine> decode, head;
  std::shared_ptr<StagingLane> going, coming;
  std::unique_ptr<PrefixLender> lender;
  std::unique_ptr<PrefixLoader> loader;
  LeaseId lease;

 private:
  Device& Home() { return on_device ? static_cast<Device&>(gpu) : cpu; }

  // Somebody's block stands between the two that are kept.
  void Know() {
    std::vector<int32_t> ids(kPrompt);
    for (int64_t i = 0; i < kPrompt; ++i) ids[i] = static_cast<int32_t>(i);
    const absl::Span<const int32_t> all = ids;
    Leave(all.first(kKvBlockTokens), 0);
    const LeaseId between = *store->Reserve({.prompt_tokens = 1, .total_tokens = 1});
    Leave(all.first(kKnown), kKvBlockTokens);
    lease = *store->Reserve(Request(all, kKnown));
    store->Release(between);
  }
  static LeaseRequest Request(absl::Span<const int32_t> ids, int64_t known) {
    const auto tokens = static_cast<int64_t>(ids.size());
    LeaseRequest request{.prompt_tokens = tokens, .total_tokens = tokens};
    if (known == 0) return request;
    request.least_known_tokens = known;
    request.rest_handed = true;
    request.prompt_ids = ids;
    return request;
  }
  // Of `ids` the first `known` ones are known; the others come, and all are kept.
  void Leave(absl::Span<const int32_t> ids, int64_t known) {
    const auto end = static_cast<int64_t>(ids.size());
    const LeaseId left = *store->Reserve(Request(ids, known));
    for (int64_t layer = 0; layer < kPrefixLayers; ++layer) {
      KvStore::Write write = *store->BeginWrite(left, layer, known, end);
      RUNAHEAD_CHECK(write.ready().Wait(LongestWait()).ok());
      const std::vector<float> handed = Handed(layer);
      size_t at = known * kPrefixRowBytes;
      for (const BufferRef& piece : write.destination()) {
        std::memcpy(piece.data(), reinterpret_cast<const std::byte*>(handed.data()) + at, piece.size);
        at += piece.size;
      }
      RUNAHEAD_CHECK(write.Commit().Wait(LongestWait()).ok());
    }
    KvStore::Sequence sequence = *store->Open(left);
    sequence.Keep(ids);
  }
};

absl::StatusCode Code(const Event& event) {
  return event.Wait(LongestWait()).code();
}

class Prefix : public ::testing::TestWithParam<PrefixWay> {
 protected:
  void ExpectRows(int32_t layer, int64_t begin, const BufferRef& into) {
    EXPECT_EQ(world_.Peek(into), world_.Rows(layer).substr(begin * kPrefixRowBytes)) << "layer " << layer;
  }
  PrefixWorld world_{GetParam()};
};

TEST_P(Prefix, LayersComeThatAreAskedForAtOnce) {
  std::vector<BufferRef> into;
  std::vector<Event> loaded;
  for (int32_t layer = 0; layer < kPrefixLayers; ++layer) {
    into.push_back(world_.Place());
    loaded.push_back(world_.Load(world_.Wanted(layer), into.back()));
  }
  for (int32_t layer = 0; layer < kPrefixLayers; ++layer) {
    ASSERT_EQ(Code(loaded[layer]), absl::StatusCode::kOk) << loaded[layer].Wait();
    ExpectRows(layer, 0, into[layer]);
  }
}

// As behind a window: in the first block, in the second one, and of one row.
TEST_P(Prefix, WhatComesMayBeginAnywhere) {
  for (const int64_t begin : {int64_t{100}, int64_t{300}, kKnown - 1}) {
    const BufferRef into = world_.Place(begin);
    ASSERT_EQ(Code(world_.Load(world_.Wanted(1, begin), into)), absl::StatusCode::kOk);
    ExpectRows(1, begin, into);
  }
}

TEST_P(Prefix, WhatTheLeaseDidNotBeginWithIsRefused) {
  Slice more = world_.Wanted(0);
  more.end = kPrompt;
  const BufferRef into = Room((kPrompt)*kPrefixRowBytes);
  EXPECT_EQ(Code(world_.Load(more, into)), absl::StatusCode::kOutOfRange);
  Slice other = world_.Wanted(0);
  other.lease.number ^= 1;
  EXPECT_EQ(Code(world_.Load(other, world_.Place())), absl::StatusCode::kNotFound);
  world_.store->Release(world_.lease);
  EXPECT_EQ(Code(world_.Load(world_.Wanted(0), world_.Place())), absl::StatusCode::kNotFound);
}

TEST_P(Prefix, NothingIsLentAnyMoreWhenItHasCome) {
  ASSERT_EQ(Code(world_.Load(world_.Wanted(0), world_.Place())), absl::StatusCode::kOk);
  world_.store->Release(world_.lease);
  world_.store->BeginEpoch(1);
  EXPECT_EQ(world_.store->stats().used_bytes, 0);
}

TEST_P(Prefix, WhatIsDroppedIsCancelledAndMayBeAskedForAgain) {
  const Event first = world_.Load(world_.Wanted(0), world_.Place());
  const Event second = world_.Load(world_.Wanted(1), world_.Place());
  world_.loader->Drop(world_.lease);
  for (const Event& event : {first, second}) {
    const absl::StatusCode code = Code(event);  // it may have come before
    EXPECT_TRUE(code == absl::StatusCode::kCancelled || code == absl::StatusCode::kOk) << code;
  }
  const BufferRef into = world_.Place();
  ASSERT_EQ(Code(world_.Load(world_.Wanted(2), into)), absl::StatusCode::kOk);
  ExpectRows(2, 0, into);
}

INSTANTIATE_TEST_SUITE_P(Ways, Prefix,
                         ::testing::Values(PrefixWay::kTcp, PrefixWay::kStaged, PrefixWay::kInProcess,
                                           PrefixWay::kInProcessOnDevice, PrefixWay::kTcpOpened,
                                           PrefixWay::kInProcessOpened, PrefixWay::kOnDeviceOpened),
                         [](const auto& way) { return NameOf(way.param); });

// Over TCP, of rows as they are stored, and of opened ones.
class MessagePrefix : public ::testing::TestWithParam<PrefixWay> {
 protected:
  // Nothing was written.
  static bool Untouched(const BufferRef& into) { return Bytes(into) == Bytes(Room(into.size)); }
  PrefixWorld world_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Ways, MessagePrefix, ::testing::Values(PrefixWay::kTcp, PrefixWay::kTcpOpened),
                         [](const auto& way) { return NameOf(way.param); });

TEST_P(MessagePrefix, WhatIsDroppedBeforeItComesIsNeverWritten) {
  const BufferRef into = world_.Place();
  world_.faults.HoldVerdicts();
  const Event loaded = world_.Load(world_.Wanted(0), into);
  world_.faults.AwaitHeld(2);  // a slice of each block
  world_.loader->Drop(world_.lease);
  EXPECT_TRUE(loaded.fired());
  EXPECT_EQ(Code(loaded), absl::StatusCode::kCancelled);
  world_.faults.ReleaseVerdicts();
  world_.store->Release(world_.lease);
  ASSERT_TRUE(Await("nothing is lent", [&] { return world_.store->stats().used_bytes == 0; }));
  EXPECT_TRUE(Untouched(into));
}

TEST_P(MessagePrefix, ALeaseThatEndsMeanwhileIsLentUntilItsRowsHaveCome) {
  const BufferRef into = world_.Place();
  world_.faults.HoldVerdicts();
  const Event loaded = world_.Load(world_.Wanted(0), into);
  world_.faults.AwaitHeld(2);
  world_.store->Release(world_.lease);
  world_.store->BeginEpoch(1);
  EXPECT_GT(world_.store->stats().used_bytes, 0);
  world_.faults.ReleaseVerdicts();
  ASSERT_EQ(Code(loaded), absl::StatusCode::kOk);
  EXPECT_EQ(Bytes(into), world_.Rows(0));
  EXPECT_EQ(world_.store->stats().used_bytes, 0);
}

TEST_P(MessagePrefix, DamagedRowsAreSentAgain) {
  world_.faults.CorruptSends(kTransferAttempts - 1);
  const BufferRef into = world_.Place();
  ASSERT_EQ(Code(world_.Load(world_.Wanted(0), into)), absl::StatusCode::kOk);
  EXPECT_EQ(Bytes(into), world_.Rows(0));
  EXPECT_EQ(world_.damaged, kTransferAttempts - 1);
}

TEST_P(MessagePrefix, RowsThatAreDamagedEachTimeAreLost) {
  world_.faults.CorruptSends(2 * kTransferAttempts);
  const Event loaded = world_.Load(world_.Wanted(0), world_.Place());
  ASSERT_EQ(Code(loaded), absl::StatusCode::kDataLoss);
  world_.faults.CorruptSends(0);
  EXPECT_EQ(Code(world_.Load(world_.Wanted(0), world_.Place())), absl::StatusCode::kOk) << "the connection lives";
}

TEST_P(MessagePrefix, ADecodeWorkerThatDiesEndsWhatIsAsked) {
  world_.faults.HoldVerdicts();
  const Event loaded = world_.Load(world_.Wanted(0), world_.Place());
  world_.faults.AwaitHeld(2);
  world_.decode->Stop();
  EXPECT_EQ(Code(loaded), absl::StatusCode::kUnavailable);
  world_.faults.ReleaseVerdicts();
  EXPECT_EQ(Code(world_.Load(world_.Wanted(1), world_.Place())), absl::StatusCode::kUnavailable);
}

TEST_P(MessagePrefix, OneThatLendsNothingIsUnavailable) {
  world_.lender.reset();
  EXPECT_EQ(Code(world_.Load(world_.Wanted(0), world_.Place())), absl::StatusCode::kUnavailable);
}

// More is asked for than there are places for opened rows, all of which are on their way.
TEST_P(MessagePrefix, ALenderThatEndsEndsWhatIsAskedAndLendsNothingMore) {
  world_.faults.HoldVerdicts();
  std::vector<BufferRef> into;
  std::vector<Event> loaded;
  for (int32_t layer = 0; layer < kPrefixLayers; ++layer) {
    into.push_back(world_.Place());
    loaded.push_back(world_.Load(world_.Wanted(layer), into.back()));
  }
  world_.faults.AwaitHeld(4);
  std::thread ending([this] { world_.lender.reset(); });
  world_.faults.ReleaseVerdicts();
  ending.join();
  world_.store->Release(world_.lease);
  EXPECT_EQ(world_.store->stats().used_bytes, 0);
  for (int32_t layer = 0; layer < kPrefixLayers; ++layer) {
    const absl::StatusCode code = Code(loaded[layer]);  // it may have come before
    EXPECT_TRUE(code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kOk) << code;
    if (code != absl::StatusCode::kOk) continue;
    EXPECT_EQ(Bytes(into[layer]), world_.Rows(layer));
  }
}

TEST_P(MessagePrefix, ALoaderThatEndsEndsWhatItLoads) {
  world_.faults.HoldVerdicts();
  const Event loaded = world_.Load(world_.Wanted(0), world_.Place());
  world_.faults.AwaitHeld(2);
  world_.loader.reset();
  EXPECT_TRUE(loaded.fired());
  EXPECT_EQ(Code(loaded), absl::StatusCode::kUnavailable);
  world_.faults.ReleaseVerdicts();
}

TEST_P(MessagePrefix, AnotherFormAndALayerThatIsLoadedAlreadyAreRefused) {
  Slice other = world_.Wanted(0);
  other.form = RowForm::kBF16;
  EXPECT_EQ(Code(world_.Load(other, world_.Place())), absl::StatusCode::kFailedPrecondition);
  world_.faults.HoldVerdicts();
  const Event loaded = world_.Load(world_.Wanted(0), world_.Place());
  EXPECT_EQ(Code(world_.Load(world_.Wanted(0), world_.Place())), absl::StatusCode::kFailedPrecondition);
  world_.faults.AwaitHeld(2);
  world_.faults.ReleaseVerdicts();
  EXPECT_EQ(Code(loaded), absl::StatusCode::kOk);
}

// What no worker of ours says.
class MalformedPrefix : public MessagePrefix {
 protected:
  ~MalformedPrefix() override { stranger_.reset(); }
  absl::StatusCode Say(const PeerId& to, MessageKind kind, std::string header, Outbound bytes = {}) {
    EventSource answered;
    stranger_->Send(to, kind, std::move(header), std::move(bytes),
                    [answered](const absl::Status& answer) { answered.Fire(answer); });
    return Code(answered.event());
  }
  absl::StatusCode Ask(const Slice& rows) {
    return Say(world_.Decode(), MessageKind::kPrefixAsk, PackAsk({rows, stranger_->self().address}));
  }

  std::unique_ptr<MessageEngine> stranger_ = NewEngine();
};

INSTANTIATE_TEST_SUITE_P(Ways, MalformedPrefix, ::testing::Values(PrefixWay::kTcp, PrefixWay::kTcpOpened),
                         [](const auto& way) { return NameOf(way.param); });

TEST_P(MalformedPrefix, AsksAreRefusedOrDiscardedAndHarmNothing) {
  const PeerId decode = world_.Decode();
  for (const std::string& header : {std::string(), std::string("short"), PackSlice(world_.Wanted(0))}) {
    EXPECT_EQ(Say(decode, MessageKind::kPrefixAsk, header), absl::StatusCode::kCancelled);
  }
  const std::string whole = PackAsk({world_.Wanted(0), stranger_->self().address});
  EXPECT_EQ(Say(decode, MessageKind::kPrefixAsk, whole, Pattern(10, 1)), absl::StatusCode::kCancelled);
  const auto refused = [&](const std::function<void(Slice&)>& damage) {
    Slice rows = world_.Wanted(0);
    damage(rows);
    return Ask(rows);
  };
  EXPECT_EQ(refused([](Slice& rows) { rows.layer = kPrefixLayers; }), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(refused([](Slice& rows) { rows.layer = -1; }), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(refused([](Slice& rows) { rows.begin = -1; }), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(refused([](Slice& rows) { rows.begin = rows.end; }), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(refused([](Slice& rows) { rows.end = int64_t{1} << 62; }), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(refused([](Slice& rows) { rows.kind = SliceKind::kX; }), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(refused([](Slice& rows) { rows.kind = static_cast<SliceKind>(77); }), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(refused([](Slice& rows) { rows.form = static_cast<RowForm>(77); }), absl::StatusCode::kFailedPrecondition);
  // Rows go to who has asked, and nobody takes them there. A false address is not connected to.
  EXPECT_EQ(Ask(world_.Wanted(0)), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Say(decode, MessageKind::kPrefixAsk, PackAsk({world_.Wanted(0), "127.0.0.1:1"})),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Code(world_.Load(world_.Wanted(0), world_.Place())), absl::StatusCode::kOk);
}

TEST_P(MalformedPrefix, RowsThatNobodyAskedForAreNotTaken) {
  const PeerId head = world_.head->self();
  const auto say = [&](const Slice& rows, size_t bytes) {
    Outbound out(Pattern(bytes, 9));
    out.seed = SeedOf(rows);
    return Say(head, MessageKind::kPrefixRows, PackSlice(rows), std::move(out));
  };
  const size_t size = kKnown * kPrefixRowBytes;
  EXPECT_EQ(Say(head, MessageKind::kPrefixRows, "short"), absl::StatusCode::kCancelled);
  EXPECT_EQ(say(world_.Wanted(0), size), absl::StatusCode::kCancelled);
  const BufferRef into = world_.Place();
  world_.faults.HoldVerdicts();
  const Event loaded = world_.Load(world_.Wanted(0), into);
  world_.faults.AwaitHeld(2);
  EXPECT_EQ(say(world_.Wanted(0), size), absl::StatusCode::kOutOfRange) << "they are another's to send";
  EXPECT_EQ(say(world_.Wanted(1), size), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Untouched(into));
  world_.faults.ReleaseVerdicts();
  ASSERT_EQ(Code(loaded), absl::StatusCode::kOk);
  EXPECT_EQ(Bytes(into), world_.Rows(0));
}

class StagedPrefix : public ::testing::Test {
 protected:
  PrefixWorld world_{PrefixWay::kStaged};
};

// The head's buffer is written until then.
TEST_F(StagedPrefix, WhatIsDroppedIsOverWhenItsCopiesAre) {
  EventSource gate;
  world_.head_gpu.HoldCopies(gate.event());
  const Event loaded = world_.Load(world_.Wanted(0), world_.Place());
  world_.head_gpu.AwaitCopyEnqueued();
  world_.loader->Drop(world_.lease);
  EXPECT_FALSE(loaded.fired());
  gate.Fire(absl::OkStatus());
  EXPECT_EQ(Code(loaded), absl::StatusCode::kCancelled);
}

TEST_F(StagedPrefix, ADecodeWorkerThatDiesEndsItWhenItsCopiesAreOver) {
  EventSource gate;
  world_.head_gpu.HoldCopies(gate.event());
  const Event loaded = world_.Load(world_.Wanted(0), world_.Place());
  world_.head_gpu.AwaitCopyEnqueued();
  world_.decode->Stop();
  EXPECT_FALSE(loaded.fired());
  gate.Fire(absl::OkStatus());
  EXPECT_EQ(Code(loaded), absl::StatusCode::kUnavailable);
}

TEST_F(StagedPrefix, AHeadWithoutMemoryToBringItInSaysSo) {
  constexpr size_t kNoMachineHas = size_t{1} << 50;
  RemoteDevice poor;
  poor.RefuseHostMemory(true);
  const auto lane = StagingLane::Create(poor, "prefix", kNoMachineHas);
  const std::unique_ptr<MessageEngine> engine = NewEngine();
  {
    const auto loader = MakeMessagePrefixLoader(*engine, {.lane = lane});
    const BufferRef into = poor.Room(kKnown * kPrefixRowBytes);
    EXPECT_EQ(Code(loader->Load(world_.Decode(), world_.Wanted(0), into)), absl::StatusCode::kResourceExhausted);
  }
  lane->Stop();
}

}  // namespace
}  // namespace runahead::testing
