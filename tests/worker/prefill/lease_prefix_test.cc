// Chains that begin behind KV that a lease began with: to the bit what a chain from the prompt's first token makes that
// has a part less of one worker more, with windows and without.
#include "worker/prefill/lease_prefix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/chain_fixture.h"
#include "tests/testing/patience.h"
#include "tests/testing/small_model.h"
#include "tests/testing/stored_kv.h"
#include "tests/testing/test_device.h"
#include "tests/testing/windowed_model.h"
#include "tests/worker/link/new_engine.h"
#include "worker/handoff/in_process_handoff.h"
#include "worker/handoff/in_process_prefix.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/message_prefix.h"

namespace runahead {
namespace {

using ::runahead::testing::NewEngine;

constexpr int64_t kPrompt = 2 * kKvBlockTokens + 277;

struct PrefixCase {
  const char* name;
  bool in_process;
  std::vector<int64_t> windows;  // by layer, in turn; empty: none
  int64_t known = 2 * kKvBlockTokens;
};

// What a chain drew, with the log probabilities of all, and what lies in the store behind it.
struct ChainOutcome {
  Sampled token;
  std::vector<std::string> kv;  // of a layer each, as far as decode sees it
};

class LeasePrefixChain : public ::testing::TestWithParam<PrefixCase> {
 protected:
  LeasePrefixChain() : loaded_(LoadForTest(WriteSynthetic(SmallModel(), "lease_prefix"), DType::kF32, 2)) {
    if (!GetParam().windows.empty()) {
      loaded_.model = std::make_shared<WindowedModel>(loaded_.model, GetParam().windows);
    }
    KvStoreOptions options{layers(), loaded_.model->kv_row_bytes(), 16 * kKvBlockTokens, 5};
    options.windows = loaded_.model->windows();
    store_ = *KvStore::Create(options, *loaded_.device, RealClock());
    receiver_ = std::make_unique<SliceReceiver>(*store_, SliceReceiverOptions{.kv_form = RowForm::kF32});
    std::shared_ptr<SliceTransport> transport;
    if (GetParam().in_process) {
      transport = MakeInProcessTransport(*receiver_);
      loader_ = MakeInProcessPrefixLoader(*store_);
    } else {
      decode_engine_ = NewEngine();
      prefill_engine_ = NewEngine();
      from_engine_ = std::make_unique<MessageHandoffReceiver>(*decode_engine_, *receiver_);
      lender_ = std::make_unique<PrefixLender>(*decode_engine_, *store_, PrefixLenderOptions{});
      transport = MakeMessageSliceTransport(*prefill_engine_);
      loader_ = MakeMessagePrefixLoader(*prefill_engine_);
    }
    sender_ = std::make_unique<SliceSender>(std::move(transport));
  }

  int64_t layers() const { return loaded_.model->config().layers; }
  int64_t SeenFrom(int64_t layer) const { return FirstSeen(loaded_.model->attention(layer).window, kPrompt); }

  LeaseRequest ForPrompt(int64_t tokens) const { return {.prompt_tokens = tokens, .total_tokens = tokens + 1}; }
  LeaseRequest ForRest() const {
    LeaseRequest request = ForPrompt(kPrompt);
    request.least_known_tokens = known_;
    request.rest_handed = true;
    request.prompt_ids = ids_;
    return request;
  }
  // The first member's, for the others too.
  void Start(TestChain& chain, const LeaseId& lease, const std::vector<int64_t>& bounds) {
    chain.handoff().PassTo(*sender_);
    for (int part = 0; part + 1 < static_cast<int>(bounds.size()); ++part) {
      PrefillJob job = chain.JobOf(1, 0, part, bounds, ids_, EveryLogprob(loaded_), true, absl::InfiniteFuture());
      job.lease = lease;
      if (decode_engine_ != nullptr) job.decode = decode_engine_->self();
      if (part == 0 && bounds[0] > 0) job.prefix = std::make_shared<LeasePrefix>(*loader_, job, RowForm::kF32);
      chain.member(part).stage->Start(std::move(job));
    }
  }
  Sampled RunChain(const LeaseId& lease, const std::vector<int64_t>& bounds) {
    const int parts = static_cast<int>(bounds.size()) - 1;
    TestChain chain(loaded_, parts, bounds.back());
    Start(chain, lease, bounds);
    const Sampled token = chain.member(parts - 1).news.AwaitFirstToken(1);
    for (int part = 0; part < parts; ++part) EXPECT_EQ(chain.member(part).news.AwaitDone(1), absl::OkStatus());
    EXPECT_EQ(chain.live_edge_jobs(), 0u);
    return token;
  }
  ChainOutcome Outcome(const LeaseId& lease, const std::vector<int64_t>& bounds) {
    ChainOutcome outcome{RunChain(lease, bounds), {}};
    const StoredKv stored(*store_, lease);
    for (int64_t layer = 0; layer < layers(); ++layer) {
      outcome.kv.push_back(stored.Bytes(layer, SeenFrom(layer), kPrompt));
    }
    return outcome;
  }
  // The first known_ tokens are there as a prompt's own.
  void Know() {
    const LeaseId lease = *store_->Reserve(ForPrompt(known_));
    RunChain(lease, {0, known_});
    KvStore::Sequence sequence = *store_->Open(lease);
    sequence.Keep(absl::MakeConstSpan(ids_).first(known_));
  }

  const int64_t known_ = GetParam().known;

  LoadedModel loaded_;
  const std::vector<int32_t> ids_ = RandomIds(kPrompt, 320, 61);
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<SliceReceiver> receiver_;
  std::unique_ptr<MessageEngine> decode_engine_, prefill_engine_;  // null: in one process
  std::unique_ptr<MessageHandoffReceiver> from_engine_;
  std::unique_ptr<PrefixLender> lender_;
  std::unique_ptr<HandoffSender> sender_;
  std::unique_ptr<PrefixLoader> loader_;
};

TEST_P(LeasePrefixChain, GivesBitwiseWhatAChainFromTheFirstTokenGives) {
  Know();
  for (std::vector<int64_t> bounds : std::vector<std::vector<int64_t>>{
           {known_, kPrompt}, {known_, known_ + 130, kPrompt}, {known_, known_ + 1, known_ + 150, kPrompt}}) {
    SCOPED_TRACE(::testing::PrintToString(bounds));
    const ChainOutcome behind = Outcome(*store_->Reserve(ForRest()), bounds);
    bounds.insert(bounds.begin(), 0);
    const ChainOutcome whole = Outcome(*store_->Reserve(ForPrompt(kPrompt)), bounds);
    EXPECT_EQ(behind.token.id, whole.token.id);
    ASSERT_EQ(behind.token.logprobs.size(), whole.token.logprobs.size());
    for (size_t i = 0; i < whole.token.logprobs.size(); ++i) {
      EXPECT_EQ(behind.token.logprobs[i].id, whole.token.logprobs[i].id);
      EXPECT_EQ(behind.token.logprobs[i].logprob, whole.token.logprobs[i].logprob);
    }
    for (int64_t layer = 0; layer < layers(); ++layer) {
      EXPECT_TRUE(behind.kv[layer] == whole.kv[layer]) << "layer " << layer;
    }
  }
}

TEST_P(LeasePrefixChain, ALeaseThatIsGoneIsTheDecodeWorkersFailure) {
  Know();
  const LeaseId lease = *store_->Reserve(ForRest());
  store_->Release(lease);
  TestChain chain(loaded_, 2, kPrompt);
  Start(chain, lease, {known_, known_ + 100, kPrompt});
  // The head loads from it, and both hand off to it: whichever finds it gone first drops the other's job.
  const JobEnd head = chain.member(0).news.AwaitEnd(1), tail = chain.member(1).news.AwaitEnd(1);
  EXPECT_FALSE(head.status.ok());
  EXPECT_FALSE(tail.status.ok());
  const auto of_decode = [](const JobEnd& end) {
    return absl::IsNotFound(end.status) && end.cause == JobCause::kDecode;
  };
  EXPECT_TRUE(of_decode(head) || of_decode(tail)) << head.status << "; " << tail.status;
}

INSTANTIATE_TEST_SUITE_P(Ways, LeasePrefixChain,
                         ::testing::Values(PrefixCase{"Tcp", false, {}}, PrefixCase{"InProcess", true, {}},
                                           PrefixCase{"TcpWindowed", false, {0, 100}},
                                           PrefixCase{"InProcessWindowed", true, {0, 100}},
                                           PrefixCase{"TcpBegun", false, {}, 2 * kKvBlockTokens + 77},
                                           PrefixCase{"InProcessBegun", true, {}, 77},
                                           PrefixCase{"TcpBegunWindowed", false, {0, 100}, kKvBlockTokens + 77}),
                         [](const auto& of) { return std::string(of.param.name); });

// Loads that end when they are dropped.
class HeldLoader final : public PrefixLoader {
 public:
  Event Load(const PeerId&, const Slice& rows, BufferRef) override {
    MutexLock lock(mu_);
    loads_.push_back(rows);
    ends_.emplace_back();
    return ends_.back().event();
  }
  void Drop(const LeaseId& lease) override {
    std::vector<EventSource> ended;
    {
      MutexLock lock(mu_);
      ++drops_;
      for (const Slice& rows : loads_) EXPECT_EQ(rows.lease, lease);
      ended.swap(ends_);
    }
    for (const EventSource& end : ended) end.Fire(absl::CancelledError("dropped"));
  }
  std::vector<Slice> loads() {
    MutexLock lock(mu_);
    return loads_;
  }
  int drops() {
    MutexLock lock(mu_);
    return drops_;
  }

 private:
  Mutex mu_;
  std::vector<Slice> loads_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<EventSource> ends_ RUNAHEAD_GUARDED_BY(mu_);
  int drops_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

class StoppedPrefix : public ::testing::Test {
 protected:
  StoppedPrefix() : loaded_(LoadForTest(WriteSynthetic(SmallModel(), "stopped_prefix"), DType::kF32, 1)) {}
  PrefillJob Job(TestChain& chain) {
    const std::vector<int32_t> ids = RandomIds(80, 320, 62);
    PrefillJob job = chain.JobOf(1, 0, 0, {50, 80}, ids, {}, true, absl::InfiniteFuture());
    job.prefix = std::make_shared<LeasePrefix>(loader_, job, RowForm::kF32);
    return job;
  }
  const LoadedModel loaded_;
  HeldLoader loader_;
};

TEST_F(StoppedPrefix, ACancelledJobDropsWhatItLoadsAndEnds) {
  TestChain chain(loaded_, 1, 80);
  chain.member(0).stage->Start(Job(chain));
  chain.member(0).trace.Await(1, 0, TracePoint::kQkvEnd);
  const std::vector<Slice> loads = loader_.loads();
  ASSERT_EQ(loads.size(), 1u);
  EXPECT_EQ(loads[0].layer, 0);
  EXPECT_EQ(loads[0].begin, 0);
  EXPECT_EQ(loads[0].end, 50);
  EXPECT_FALSE(chain.member(0).news.done(1));
  chain.member(0).stage->Cancel(1, absl::CancelledError("the router cancelled the job"));
  const JobEnd end = chain.member(0).news.AwaitEnd(1);
  EXPECT_EQ(end.cause, JobCause::kRouter);
  EXPECT_EQ(end.status, absl::CancelledError("the router cancelled the job"));
  EXPECT_GE(loader_.drops(), 1);
}

TEST_F(StoppedPrefix, NothingIsAskedForBehindADrop) {
  TestChain chain(loaded_, 1, 80);
  const PrefillJob job = Job(chain);
  const Event first = job.prefix->Load(0, 0, {});
  EXPECT_FALSE(first.fired());
  job.prefix->Drop();
  EXPECT_EQ(first.Wait(testing::LongestWait()).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(job.prefix->Load(1, 0, {}).Wait(testing::LongestWait()).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(loader_.loads().size(), 1u);
}

}  // namespace
}  // namespace runahead
