// What decode workers keep of sequences that ended, seen and emptied over the router.
#include "server/router/cache_service.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "server/rpc/status.h"
#include "tests/server/router/known_by_key_fixture.h"
#include "tests/testing/await.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kAlicesKey;
using testing::kAnswer;
using testing::kBobsKey;
using testing::kFirstPrompt;
using testing::kKnownOfNext;
using testing::kMore;

// Calls of Cache, by whoever has `key`; empty: by somebody without one.
template <typename Fixture>
class CacheCalls : public Fixture {
 protected:
  v1::ShowCacheResponse Show(const std::string& key = "") {
    grpc::ClientContext context;
    if (!key.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", key));
    v1::ShowCacheResponse shown;
    const absl::Status status = FromGrpcStatus(this->cache_stub_->Show(&context, {}, &shown));
    EXPECT_TRUE(status.ok()) << status;
    return shown;
  }
  v1::EmptyCacheResponse Empty(const std::string& key = "") {
    grpc::ClientContext context;
    if (!key.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", key));
    v1::EmptyCacheResponse emptied;
    const absl::Status status = FromGrpcStatus(this->cache_stub_->Empty(&context, {}, &emptied));
    EXPECT_TRUE(status.ok()) << status;
    return emptied;
  }
};

using CacheServiceTest = CacheCalls<testing::KnownFixture>;
using CacheByKeyTest = CacheCalls<testing::KnownByKeyFixture>;

TEST_F(CacheServiceTest, ShowsWhatIsKeptAndWhatItWasGoodFor) {
  StartKeeping();
  ExpectContinuation(Generate(FirstTurn()));
  const v1::ShowCacheResponse shown = Show();
  EXPECT_TRUE(shown.on());
  EXPECT_EQ(shown.key(), "");
  constexpr int kLearned = kFirstPrompt + kAnswer + kMore + kAnswer - 1;
  EXPECT_EQ(shown.index_tokens(), kLearned);
  EXPECT_EQ(shown.index_tokens(), Metric("runahead_known_index_tokens"));
  EXPECT_EQ(shown.index_bytes(), Metric("runahead_known_index_bytes"));
  EXPECT_GT(shown.index_bytes(), 4 * kLearned);
  EXPECT_EQ(shown.totals().prompt_tokens(), kFirstPrompt + (kFirstPrompt + kAnswer + kMore));
  EXPECT_EQ(shown.totals().known_by_decode(), kKnownOfNext);
  EXPECT_EQ(shown.totals().known_by_chain(), 0);
  ASSERT_EQ(shown.workers_size(), 2);
  for (int i = 0; i < 2; ++i) {
    const v1::CacheOfWorker& worker = shown.workers(i);
    const bool has = static_cast<size_t>(i) == has_;
    EXPECT_EQ(worker.name(), absl::StrCat("decode-", i));
    EXPECT_EQ(worker.address(), decode_[i]->address());
    EXPECT_TRUE(worker.continues());
    EXPECT_FALSE(worker.lends());
    EXPECT_EQ(worker.error(), "");
    EXPECT_EQ(worker.index_tokens(), has ? kLearned : 0);
    EXPECT_EQ(worker.memory().kept_bytes() > 0, has);
    EXPECT_EQ(worker.memory().capacity_bytes(), 64 * testing::kFixtureContext);
  }
}

TEST_F(CacheServiceTest, OnceEmptiedAPromptIsComputedByAChain) {
  StartKeeping();
  const v1::GenerateRequest next = FirstTurn();
  const v1::EmptyCacheResponse emptied = Empty();
  EXPECT_EQ(emptied.key(), "");
  EXPECT_EQ(emptied.index_tokens(), kKnownOfNext);
  ASSERT_EQ(emptied.workers_size(), 2);
  for (const v1::EmptiedWorker& worker : emptied.workers()) EXPECT_EQ(worker.error(), "");
  EXPECT_GT(emptied.workers(static_cast<int>(has_)).freed_bytes(), 0);
  EXPECT_EQ(emptied.workers(static_cast<int>(1 - has_)).freed_bytes(), 0);
  ASSERT_EQ(Has().forget_requests().size(), 1u);
  EXPECT_FALSE(Has().forget_requests()[0].has_salt());
  EXPECT_EQ(Metric("runahead_known_index_tokens"), 0);
  const size_t reservations = Has().reserve_requests().size() + Other().reserve_requests().size();
  ExpectChain(Generate(next));
  EXPECT_EQ(Has().reserve_requests().size() + Other().reserve_requests().size(), reservations + 1)
      << "nobody was asked in vain";
}

TEST_F(CacheServiceTest, WhatRunsMeanwhileGoesOnAndIsKnownWhenItEnds) {
  StartKeeping();
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.decode_until = 2; });
  Call runs(*stub_, next);
  EXPECT_EQ(runs.Read()->started().plan().schedule(), "continuation");
  ASSERT_TRUE(runs.Read()->has_tokens());
  EXPECT_GT(Empty().index_tokens(), 0);
  EXPECT_EQ(Has().forget_requests().size(), 1u);
  Has().Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
  const Got got = runs.Finish();
  EXPECT_EQ(got.ids(), Whole());
  ExpectContinuation(Generate(Next(next, got)));
}

TEST_F(CacheServiceTest, AWorkerThatIsGoneIsNamedWithWhy) {
  StartKeeping();
  decode_[1].reset();
  constexpr size_t kItsSeat = 3;
  EXPECT_TRUE(testing::Await("decode-1 is lost", [&] { return fleet_->Live({kItsSeat}).empty(); }));
  const v1::ShowCacheResponse shown = Show();
  ASSERT_EQ(shown.workers_size(), 2);
  EXPECT_EQ(shown.workers(0).error(), "");
  EXPECT_TRUE(shown.workers(0).has_memory());
  EXPECT_EQ(shown.workers(1).name(), "");
  EXPECT_THAT(shown.workers(1).address(), HasSubstr("127.0.0.1:"));
  EXPECT_NE(shown.workers(1).error(), "");
  EXPECT_FALSE(shown.workers(1).has_memory());
  const v1::EmptyCacheResponse emptied = Empty();
  ASSERT_EQ(emptied.workers_size(), 2);
  EXPECT_EQ(emptied.workers(0).error(), "");
  EXPECT_NE(emptied.workers(1).error(), "");
}

TEST_F(CacheServiceTest, AWorkerThatSaysNothingIsWaitedForNoLongerThanThat) {
  StartKeeping();
  FirstTurn();
  Other().Change([](FakeBehaviour& b) { b.answers_kept = false; });
  const v1::ShowCacheResponse shown = Show();
  ASSERT_EQ(shown.workers_size(), 2);
  const v1::CacheOfWorker& silent = shown.workers(static_cast<int>(1 - has_));
  EXPECT_THAT(silent.error(), HasSubstr("no answer for"));
  EXPECT_EQ(silent.name(), absl::StrCat("decode-", 1 - has_));
  EXPECT_TRUE(silent.continues()) << "as it said when it joined";
  EXPECT_FALSE(silent.has_memory());
  EXPECT_TRUE(shown.workers(static_cast<int>(has_)).has_memory());
  const v1::EmptyCacheResponse emptied = Empty();
  EXPECT_THAT(emptied.workers(static_cast<int>(1 - has_)).error(), HasSubstr("no answer for"));
  EXPECT_EQ(emptied.workers(static_cast<int>(has_)).error(), "");
  EXPECT_EQ(Show().index_tokens(), 0) << "the router has forgotten, whoever has not";
}

TEST_F(CacheServiceTest, ARouterWithoutKnownBeginningsSaysSo) {
  StartKeeping({.decode = 2, .known_beginnings = false});
  const v1::ShowCacheResponse shown = Show();
  EXPECT_FALSE(shown.on());
  EXPECT_EQ(shown.index_tokens(), 0);
  EXPECT_EQ(shown.workers_size(), 2);
}

TEST_F(CacheByKeyTest, AKeySeesAndEmptiesItsOwnAlone) {
  StartKeeping({.decode = 1, .keys = &*door_});
  const v1::GenerateRequest first = Ids(kFirstPrompt, kAnswer);
  const Got of_alice = As(kAlicesKey, first), of_bob = As(kBobsKey, first);
  ASSERT_TRUE(of_alice.status.ok() && of_bob.status.ok());
  const v1::ShowCacheResponse shown = Show(kAlicesKey);
  EXPECT_EQ(shown.key(), "alice");
  EXPECT_EQ(shown.index_tokens(), kKnownOfNext);
  EXPECT_EQ(shown.workers(0).index_tokens(), kKnownOfNext);
  EXPECT_FALSE(shown.has_totals()) << "they are of all keys";
  EXPECT_EQ(2 * shown.index_bytes(), Metric("runahead_known_index_bytes"));
  const v1::EmptyCacheResponse emptied = Empty(kAlicesKey);
  EXPECT_EQ(emptied.key(), "alice");
  EXPECT_EQ(emptied.index_tokens(), kKnownOfNext);
  ASSERT_EQ(decode_[0]->forget_requests().size(), 1u);
  EXPECT_EQ(decode_[0]->forget_requests()[0].salt(), "alice");
  EXPECT_EQ(Show(kAlicesKey).index_tokens(), 0);
  EXPECT_EQ(Show(kBobsKey).index_tokens(), kKnownOfNext);
  ExpectContinuation(As(kBobsKey, Next(first, of_bob)));
  ExpectChain(As(kAlicesKey, Next(first, of_alice)));
}

TEST_F(CacheByKeyTest, WhoHasNoKeySeesAndEmptiesNothing) {
  StartKeeping({.decode = 1, .keys = &*door_});
  ASSERT_TRUE(As(kAlicesKey, Ids(kFirstPrompt, kAnswer)).status.ok());
  for (const std::string key : {"", "Bearer runahead_guessed"}) {
    grpc::ClientContext show, empty;
    if (!key.empty()) show.AddMetadata("authorization", key);
    if (!key.empty()) empty.AddMetadata("authorization", key);
    v1::ShowCacheResponse shown;
    v1::EmptyCacheResponse emptied;
    EXPECT_EQ(cache_stub_->Show(&show, {}, &shown).error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(cache_stub_->Empty(&empty, {}, &emptied).error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(shown.workers_size() + emptied.workers_size(), 0);
  }
  EXPECT_THAT(decode_[0]->forget_requests(), IsEmpty());
  EXPECT_GT(Show(kAlicesKey).index_tokens(), 0);
}

}  // namespace
}  // namespace runahead
