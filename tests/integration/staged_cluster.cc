#include "tests/integration/staged_cluster.h"

#include <signal.h>

#include <thread>

namespace runahead {
namespace {

v1::GenerateRequest OneToken() {
  v1::GenerateRequest request = RequestOf(SyntheticIds(8, 6), 1);
  request.mutable_experiment()->set_width(2);
  return request;
}

const char* NameOf(Stage stage) {
  switch (stage) {
    case Stage::kReserve:
      return "at reserve";
    case Stage::kPrefill:
      return "before the first token";
    case Stage::kHandoff:
      return "between the first token and the end of the hand-off";
    case Stage::kDecode:
      return "in decode";
  }
  return "";
}

}  // namespace

StagedCluster::StagedCluster(Stage stage) : stage_(stage) {
  // Over the whole line first: from here on every connection is there.
  EXPECT_TRUE(cluster_.GenerateEventually(ShortPrompt(2)).status.ok());
  known_ = {KnownAnswer(), {}, {}};
  in_decode_ = {LongAnswer(), {}, {}};
  one_token_ = {OneToken(), {}, {}};
  for (Other* other : {&known_, &in_decode_, &one_token_}) {
    other->undisturbed = cluster_.Generate(Uncached(other->request)).ids;
  }
  undisturbed_ = cluster_.Generate(RequestFor(stage)).ids;
  cluster_.ExpectAllFree();  // BeginAt counts from here
  pids_ = cluster_.pids();
}

StagedCluster::~StagedCluster() {
  EXPECT_TRUE(known_prompts_ > 0 || with_known_ == 0);
}

void StagedCluster::Begin(bool others) {
  known_.running.reset();
  in_decode_.running.reset();
  one_token_.running.reset();
  if (others) known_.running = BeginKnownAnswer();
  if (others && stage_ != Stage::kDecode) in_decode_.running = BeginLongAnswer();
  staged_ = BeginAt(stage_);
  if (others) one_token_.running = std::make_unique<Running>(cluster_, one_token_.request);
}

void StagedCluster::Release() {
  if (staged_.decode_stands_since) kill(pids_.at("decode-0"), SIGCONT);
}

void StagedCluster::ExpectUnharmed() {
  FaultsCluster::ExpectUnharmed(answer(), undisturbed_);
}

void StagedCluster::ExpectFailed() {
  FaultsCluster::ExpectFailed(answer(), undisturbed_, "");
}

void StagedCluster::ExpectOthersUnharmed() {
  for (const Other* other : {&known_, &in_decode_, &one_token_}) {
    if (other->running != nullptr) FaultsCluster::ExpectUnharmed(other->running->answer(), other->undisturbed);
  }
  if (known_.running == nullptr) return;
  ++with_known_;
  // The plan in the end is that of who went on after a fault.
  known_prompts_ += known_.running->answer().started.plan().known_tokens() > 0;
}

void StagedCluster::ExpectServiceAgain() {
  FaultsCluster::ExpectServiceAgain();
  EXPECT_EQ(cluster_.pids(), pids_);
}

void ForEachStage(const std::function<void(StagedCluster&)>& body) {
  std::vector<std::thread> threads;
  for (const Stage stage : {Stage::kReserve, Stage::kPrefill, Stage::kHandoff, Stage::kDecode}) {
    threads.emplace_back([&body, stage] {
      SCOPED_TRACE(NameOf(stage));
      StagedCluster cluster(stage);
      body(cluster);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace runahead
