// What an operator is told of the workers that join.
#include "server/router/worker_registry.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "tests/testing/await.h"
#include "tests/testing/refused_threads.h"
#include "tests/testing/router_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using testing::FakeBehaviour;
using testing::FakeWorker;
using ::testing::HasSubstr;
using ::testing::Not;

class WorkerRegistryTest : public testing::RouterFixture {
 protected:
  // Two prefill workers and one that decodes have joined; of this build is prefill-1, the others are of 1.0. What was
  // logged.
  std::string LogOfJoining(const std::string& build_of_one) {
    ::testing::internal::CaptureStderr();
    Start({.able = [&](v1::Capabilities& able) { able.set_build(able.name() == "prefill-1" ? build_of_one : "1.0"); }});
    AwaitReady(2, 1);
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->ListModels(&context, {}, &models_).ok());
    registry_.reset();  // its threads end: all is logged
    return ::testing::internal::GetCapturedStderr();
  }

  v1::ListModelsResponse models_;
};

TEST_F(WorkerRegistryTest, SaysWhichWorkersAreOfDifferentBuilds) {
  const std::string log = LogOfJoining("2.0");
  // Whichever of them came last.
  EXPECT_THAT(log, ContainsRegex("W .*(prefill-1 is of build 2\\.0, (prefill|decode)-0 of 1\\.0|"
                                 "(prefill|decode)-0 is of build 1\\.0, prefill-1 of 2\\.0)\n"));
  EXPECT_THAT(models_.models(0).builds(), ElementsAre("1.0", "2.0"));
}

TEST_F(WorkerRegistryTest, SaysNothingOfBuildsThatAreTheSame) {
  const std::string log = LogOfJoining("1.0");
  EXPECT_THAT(log, HasSubstr("prefill-1 at "));
  EXPECT_THAT(log, Not(HasSubstr("is of build")));
  EXPECT_THAT(models_.models(0).builds(), ElementsAre("1.0"));
}

TEST_F(WorkerRegistryTest, SaysWhichWorkerIsGoneByNameAndAddress) {
  ::testing::internal::CaptureStderr();
  Start();
  const std::string address = prefill_[1]->address();
  prefill_[1].reset();
  ASSERT_TRUE(MetricBecomes("runahead_workers{role=\"prefill\",state=\"lost\"}", 1));
  registry_.reset();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(absl::StrCat("prefill-1 at ", address, ": ")));
}

size_t WarningsOf(const std::string& address, const std::string& what, const std::string& log) {
  size_t count = 0;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    count += absl::StrContains(line, " W ") && absl::StrContains(line, address) && absl::StrContains(line, what);
  }
  return count;
}

// Each attempt to reach it gives another text, a second or less after the one before.
TEST_F(WorkerRegistryTest, WarnsOnceOfTroubleThatLastsWhateverTheText) {
  ::testing::internal::CaptureStderr();
  Start({.absence_timeout = absl::ZeroDuration(), .able = [](v1::Capabilities& able) {
           if (able.name() == "decode-0") able.set_model_fingerprint("other-0");
         }});
  const std::string address = decode_[0]->address();
  const auto refused_for = [&](const std::string& fingerprint) {
    return testing::Await(absl::StrCat("a request hears of ", fingerprint),
                          [&] { return absl::StrContains(Generate(Ids(4, 8)).status.message(), fingerprint); });
  };
  EXPECT_TRUE(refused_for("other-0"));
  for (const char* other : {"other-1", "other-2"}) {
    decode_[0].reset();
    v1::Capabilities able = Able("decode-0", v1::WORKER_ROLE_DECODE);
    able.set_model_fingerprint(other);
    decode_[0] = std::make_unique<FakeWorker>(able, address);
    EXPECT_TRUE(refused_for(other));
  }
  registry_.reset();
  EXPECT_EQ(WarningsOf(address, "does not agree", ::testing::internal::GetCapturedStderr()), 1u);
}

// Another fine-tune has the same header; a tokenizer or template of another file need not change what computes.
TEST_F(WorkerRegistryTest, AModelThatDiffersInWeightsTokenizerOrTemplateIsRefusedByName) {
  Start({.prefill = 4, .able = [](v1::Capabilities& able) {
           if (able.name() == "prefill-1") able.set_weights_fingerprint("fine-tuned");
           if (able.name() == "prefill-2") able.set_tokenizer_fingerprint("other words");
           if (able.name() == "prefill-3") able.set_chat_template_fingerprint("other chats");
         }});
  ASSERT_TRUE(MetricBecomes("runahead_workers{role=\"prefill\",state=\"refused\"}", 3));
  AwaitReady(1, 1);
  grpc::ClientContext context;
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&context, {}, &models).ok());
  EXPECT_EQ(models.models(0).weights_fingerprint(), "weights");
  EXPECT_THAT(
      models.models(0).refused_workers(),
      ElementsAre("worker prefill-1 does not agree: weights_fingerprint is fine-tuned, wanted weights",
                  absl::StrCat("worker prefill-2 does not agree: tokenizer_fingerprint is other words, wanted ",
                               model_.tokenizer_fingerprint),
                  absl::StrCat("worker prefill-3 does not agree: chat_template_fingerprint is other chats, wanted ",
                               model_.chat_template_fingerprint)));
  EXPECT_TRUE(Generate(Ids(4, 8)).status.ok());
}

TEST_F(WorkerRegistryTest, WarnsAgainOfAWorkerThatWasBackMeanwhile) {
  ::testing::internal::CaptureStderr();
  Start();
  const std::string address = prefill_[1]->address();
  for (int life = 0; life < 2; ++life) {
    prefill_[1].reset();
    AwaitReady(1, 1);
    prefill_[1] = std::make_unique<FakeWorker>(Able("prefill-1", v1::WORKER_ROLE_PREFILL), address);
    AwaitReady(2, 1);
  }
  registry_.reset();
  EXPECT_EQ(WarningsOf(address, ": ", ::testing::internal::GetCapturedStderr()), 2u);
}

// The same process in two spellings of one address: a second stream to it would end the first one, and so on. (Not by
// its name: c-ares, which looks names up for gRPC, leaks some bytes, and asan says so.)
TEST_F(WorkerRegistryTest, AWorkerThatIsListedInTwoSpellingsIsUsedOnce) {
  ::testing::internal::CaptureStderr();
  Start({.prefill = 1, .vacant = 1});
  const std::string first = prefill_[0]->address();
  const std::string second = absl::StrCat("ipv4:", first);
  constexpr int kSecond = 2;  // seat
  ASSERT_TRUE(registry_->Occupy(kSecond, second).ok());
  ASSERT_TRUE(MetricBecomes("runahead_workers{role=\"prefill\",state=\"refused\"}", 1));
  EXPECT_EQ(Metric("runahead_workers{role=\"prefill\",state=\"ready\"}"), 1);
  EXPECT_TRUE(Generate(Ids(4, 8)).status.ok());
  // Where the first one's address goes away, the second is as good.
  registry_->Vacate(0);
  AwaitReady(1, 1);
  EXPECT_EQ(Generate(Ids(4, 8)).started().plan().workers(0), "prefill-0");
  registry_.reset();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, ContainsRegex(absl::StrCat("prefill-0 at ", second, ": .*is in use as prefill at ", first)));
  EXPECT_EQ(WarningsOf("prefill-0", "", log), 0u) << log;
}

// A connection has a thread; the names come in while the router serves.
TEST_F(WorkerRegistryTest, AWorkerThatTheSystemGivesNoThreadForStaysOutAndNothingElse) {
  Start({.vacant = 1});
  FakeWorker third(Able("prefill-2", v1::WORKER_ROLE_PREFILL));
  constexpr int kVacant = 3;  // seat
  {
    const testing::RefusedThreads none;
    const absl::Status refused = registry_->Occupy(kVacant, third.address());
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("no more threads"));
    EXPECT_EQ(none.refused(), 1);
    EXPECT_EQ(fleet_->address(kVacant), "");
  }
  ASSERT_TRUE(registry_->Occupy(kVacant, third.address()).ok());
  AwaitReady(3, 1);
}

std::string Workers(const char* role, const char* state) {
  return absl::StrCat("runahead_workers{role=\"", role, "\",state=\"", state, "\"}");
}

std::string Draining(const char* role) {
  return Workers(role, "draining");
}

TEST_F(WorkerRegistryTest, NothingNewIsPlannedOnAPrefillWorkerThatDrainsAndWhatItHasGoesOn) {
  Start();
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  Call running(*stub_, Ids(600, 1));
  const uint64_t job = prefill_[0]->AwaitStarts(1)[0].job();
  ASSERT_EQ(prefill_[1]->AwaitStarts(1)[0].job(), job) << "both are in the chain";
  prefill_[0]->SendDraining();
  ASSERT_TRUE(MetricBecomes(Draining("prefill"), 1));

  Call next(*stub_, Ids(600, 1));
  const v1::StartJob alone = prefill_[1]->AwaitStarts(2)[1];
  EXPECT_EQ(alone.bounds_size(), 2);
  EXPECT_FALSE(prefill_[0]->drained());
  prefill_[1]->SendFirstToken(job, 100);
  prefill_[1]->SendDone(job);
  prefill_[0]->SendDone(job);
  EXPECT_EQ(running.Finish().status, absl::OkStatus());
  prefill_[0]->AwaitDrained();
  EXPECT_EQ(prefill_[0]->AwaitStarts(1).size(), 1u);
  prefill_[1]->SendFirstToken(alone.job(), 100);
  prefill_[1]->SendDone(alone.job());
  EXPECT_EQ(next.Finish().status, absl::OkStatus());
}

TEST_F(WorkerRegistryTest, ADecodeWorkerDrainsUntilItsLeasesHaveEnded) {
  Start({.absence_timeout = absl::ZeroDuration()});
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 1; });
  Call running(*stub_, Ids(4, 8));
  decode_[0]->AwaitDecodes(1);
  decode_[0]->SendDraining();
  ASSERT_TRUE(MetricBecomes(Draining("decode"), 1));
  const absl::Status refused = Generate(Ids(4, 8)).status;
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("decode-0 drains before it stops"));
  EXPECT_FALSE(decode_[0]->drained());
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
  EXPECT_EQ(running.Finish().ids().size(), 8u);
  decode_[0]->AwaitDrained();
}

TEST_F(WorkerRegistryTest, AWorkerThatHasNothingHasDrainedAtOnce) {
  Start();
  prefill_[1]->SendDraining();
  prefill_[1]->AwaitDrained();
  EXPECT_EQ(fleet_->ready_prefill(), 1);
  EXPECT_EQ(Metric(Draining("prefill")), 1);
}

TEST_F(WorkerRegistryTest, AWorkerThatStopsAfterItDrainedIsNotLost) {
  Start({.absence_timeout = absl::ZeroDuration()});
  const std::string address = decode_[0]->address();
  decode_[0]->SendDraining();
  decode_[0]->AwaitDrained();
  decode_[0].reset();
  ASSERT_TRUE(MetricBecomes(Workers("decode", "connecting"), 1));
  // Nor when it was sought again, in vain.
  const auto matter = [&] { return std::string(Generate(Ids(4, 8)).status.message()); };
  EXPECT_TRUE(testing::Await("a request hears that the router failed to connect to it", [&] {
    return absl::StrContains(matter(), "failed to connect");
  })) << matter();
  EXPECT_EQ(Metric(Workers("decode", "connecting")), 1);
  EXPECT_EQ(Metric(Workers("decode", "lost")), 0);

  // In its next life it has not drained.
  decode_.push_back(std::make_unique<FakeWorker>(Able("decode-0", v1::WORKER_ROLE_DECODE), address));
  AwaitReady(2, 1);
  decode_.clear();
  EXPECT_TRUE(MetricBecomes(Workers("decode", "lost"), 1));
}

TEST_F(WorkerRegistryTest, AWorkerThatComesIntoAVacantSeatJoinsTheLine) {
  Start({.vacant = 2});
  EXPECT_EQ(fleet_->line_length(), 2u);
  FakeWorker third(Able("prefill-2", v1::WORKER_ROLE_PREFILL));
  ASSERT_TRUE(registry_->Occupy(3, third.address()).ok());
  AwaitReady(3, 1);
  EXPECT_EQ(third.AwaitLine([](const v1::FormLine& l) { return l.has_predecessor(); }).predecessor().name(),
            "prefill-1");
  EXPECT_THAT(Generate(Ids(600, 4)).started().plan().workers(), ElementsAre("prefill-0", "prefill-1", "prefill-2"));

  // It has nothing, once its report of the job's end is here.
  EXPECT_TRUE(testing::Await("it has nothing and retires", [&] { return registry_->Retire(3); }));
  AwaitReady(2, 1);
  registry_->Keep(3);
  AwaitReady(3, 1);
  EXPECT_TRUE(testing::Await("it retires again", [&] { return registry_->Retire(3); }));
  registry_->Vacate(3);
  EXPECT_EQ(fleet_->line_length(), 2u);
  EXPECT_EQ(Metric(Workers("prefill", "lost")), 0) << "a seat that is vacant is not counted";
  EXPECT_THAT(Generate(Ids(600, 4)).started().plan().workers(), ElementsAre("prefill-0", "prefill-1"));
}

TEST_F(WorkerRegistryTest, AWorkerWhoseNameIsGoneKeepsWhatItHas) {
  Start({.vacant = 1});
  FakeWorker third(Able("prefill-2", v1::WORKER_ROLE_PREFILL));
  ASSERT_TRUE(registry_->Occupy(3, third.address()).ok());
  AwaitReady(3, 1);
  for (FakeWorker* worker : {prefill_[0].get(), prefill_[1].get(), &third}) {
    worker->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  }
  Call running(*stub_, Ids(600, 1));
  const uint64_t job = third.AwaitStarts(1)[0].job();
  const std::shared_ptr<const LiveWorker> live = fleet_->Live({3}).at(0);
  EXPECT_FALSE(registry_->Retire(3));
  EXPECT_EQ(fleet_->ready_prefill(), 2);
  EXPECT_TRUE(*live->drains);
  registry_->Keep(3);
  EXPECT_FALSE(*live->drains) << "its name is back";
  EXPECT_FALSE(registry_->Retire(3));
  third.SendFirstToken(job, 100);
  for (FakeWorker* worker : {prefill_[0].get(), prefill_[1].get(), &third}) worker->SendDone(job);
  EXPECT_EQ(running.Finish().status, absl::OkStatus());
  EXPECT_TRUE(testing::Await("it has nothing and retires", [&] { return registry_->Retire(3); }));
  EXPECT_EQ(third.cancels(), 0u);
}

}  // namespace
}  // namespace runahead
