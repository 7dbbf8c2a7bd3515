// Decode workers that are to end while they decode, with real processes and what is computed in by default: their
// sequences go to another one, and each stream is the undisturbed one, to the bit of a log probability.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/faults_fixture.h"

namespace runahead {
namespace {

constexpr int kMovedOutput = 1200;

class MoveProcessTest : public ::testing::Test {
 protected:
  explicit MoveProcessTest(const std::vector<std::string>& options = {"--prefill", "1", "--decode", "2"})
      : cluster_(WriteQuantisedModel("move"), options) {}

  // Greedy ones and seeded ones, with all that looks at tokens of before.
  static v1::GenerateRequest Request(int number) {
    v1::GenerateRequest request = RequestOf(SyntheticIds(300 + 100 * number, number), kMovedOutput);
    request.mutable_stop()->set_ignore_eos(true);
    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_logprobs(3);
    if (number % 2 == 0) return request;
    sampling.set_temperature(0.9f);
    sampling.set_seed(12 + number);
    sampling.set_repetition_penalty(1.1f);
    sampling.set_frequency_penalty(0.2f);
    return request;
  }
  std::vector<Answer> Undisturbed(int streams) {
    std::vector<Answer> answers;
    for (int i = 0; i < streams; ++i) {
      answers.push_back(cluster_.GenerateEventually(Uncached(Request(i))));
      EXPECT_EQ(answers.back().ids.size(), static_cast<size_t>(kMovedOutput)) << answers.back().status.error_message();
    }
    return answers;
  }
  // A decode worker knows their prompts from then on.
  void LeavePrompts(int streams) {
    for (int i = 0; i < streams; ++i) {
      v1::GenerateRequest request = Request(i);
      request.mutable_stop()->set_max_tokens(2);
      EXPECT_TRUE(cluster_.GenerateEventually(request).status.ok());
    }
    cluster_.ExpectAllFree();
  }
  // All of them run, and have so many tokens each.
  std::vector<std::unique_ptr<Running>> Begin(int streams, size_t tokens) {
    std::vector<std::unique_ptr<Running>> running;
    for (int i = 0; i < streams; ++i) running.push_back(std::make_unique<Running>(cluster_, Request(i)));
    const auto have = [&] {
      return std::all_of(running.begin(), running.end(), [&](const auto& each) { return each->tokens() >= tokens; });
    };
    EXPECT_TRUE(Eventually(have));
    return running;
  }
  static void ExpectWhole(const Answer& got, const Answer& undisturbed) {
    ASSERT_TRUE(got.status.ok()) << got.status.error_message();
    EXPECT_EQ(got.ids, undisturbed.ids);
    EXPECT_EQ(got.text, undisturbed.text);
    EXPECT_EQ(got.finished.reason(), undisturbed.finished.reason());
    EXPECT_EQ(got.finished.usage().completion_tokens(), kMovedOutput);
    ASSERT_EQ(got.logprobs.size(), undisturbed.logprobs.size());
    for (size_t i = 0; i < got.logprobs.size(); ++i) {
      ASSERT_EQ(got.logprobs[i].SerializeAsString(), undisturbed.logprobs[i].SerializeAsString()) << i;
    }
  }
  double Moves(const std::string& result) const {
    return cluster_.Metric("router", "runahead_moves_total{result=\"" + result + "\"}");
  }
  // It has ended, and `up` has started another in its place.
  void AwaitReplacement(const std::string& name, pid_t before) {
    EXPECT_TRUE(Eventually([&] {
      const auto pids = cluster_.pids();
      return pids.contains(name) && pids.at(name) != before &&
             cluster_.Metric("router", "runahead_workers{role=\"decode\",state=\"ready\"}") == 2;
    }));
  }
  // The decode worker `name` is to end, and others have got memory for what it decodes.
  void EndAndAwaitMoves(const std::string& name, const std::string& to) {
    const double before = cluster_.Metric(to, "runahead_kv_leases");
    kill(cluster_.pid(name), SIGTERM);
    EXPECT_TRUE(Eventually([&] { return cluster_.Metric(to, "runahead_kv_leases") > before || Moves("moved") > 0; }));
  }

  LocalCluster cluster_;
};

TEST_F(MoveProcessTest, EveryStreamOfAWorkerThatIsToEndGoesOnOnAnother) {
  const int streams = 6;
  const std::vector<Answer> undisturbed = Undisturbed(streams);
  LeavePrompts(streams);
  const auto running = Begin(streams, 20);
  // Known prompts may all be one worker's.
  const bool first_has_more =
      cluster_.Metric("decode-0", "runahead_kv_leases") >= cluster_.Metric("decode-1", "runahead_kv_leases");
  const std::string name = first_has_more ? "decode-0" : "decode-1";
  const pid_t ends = cluster_.pid(name);
  kill(ends, SIGTERM);
  int begun_there = 0, known = 0;
  for (int i = 0; i < streams; ++i) {
    const Answer& got = running[i]->answer();
    ExpectWhole(got, undisturbed[i]);
    EXPECT_EQ(got.finished.failovers(), 0);
    begun_there += got.started.plan().decode_worker() == name;
    known += got.finished.usage().cached_prompt_tokens() > 0;
  }
  EXPECT_GT(known, 0);
  // A stream that is over before its turn comes does not move.
  EXPECT_GE(Moves("moved"), 1) << cluster_.Log();
  EXPECT_LE(Moves("moved"), begun_there) << cluster_.Log();
  EXPECT_GT(cluster_.Metric("router", "runahead_moved_bytes_total{result=\"moved\"}"), 0);
  AwaitReplacement(name, ends);
  cluster_.ExpectAllFree();
}

class ThreeDecodeWorkersMoveTest : public MoveProcessTest {
 protected:
  ThreeDecodeWorkersMoveTest() : MoveProcessTest({"--prefill", "1", "--decode", "3"}) {}

  // The decode worker, another one than `left`, that holds a lease.
  std::string Holder(const std::string& left) {
    std::string holder;
    EXPECT_TRUE(Eventually([&] {
      for (const char* name : {"decode-0", "decode-1", "decode-2"}) {
        if (name != left && cluster_.Metric(name, "runahead_kv_leases") > 0) holder = name;
      }
      return !holder.empty();
    }));
    return holder;
  }
};

// The second one ends before the first is replaced: the answer does not last for longer.
TEST_F(ThreeDecodeWorkersMoveTest, AStreamMovesAsOftenAsItsWorkersEnd) {
  const std::vector<Answer> undisturbed = Undisturbed(1);
  const auto running = Begin(1, 20);
  std::string holder;
  for (int moves = 1; moves <= 2; ++moves) {
    holder = Holder(holder);
    ASSERT_LT(running[0]->tokens(), static_cast<size_t>(kMovedOutput)) << "it is over";
    kill(cluster_.pid(holder), SIGTERM);
    ASSERT_TRUE(Eventually([&] { return Moves("moved") == moves; })) << cluster_.Log();
  }
  ExpectWhole(running[0]->answer(), undisturbed[0]);
  EXPECT_EQ(running[0]->answer().finished.failovers(), 0);
  EXPECT_EQ(cluster_.Sum("router", "runahead_failovers_total"), 0);
  cluster_.ExpectAllFree();
}

TEST_F(MoveProcessTest, WhoWasToTakeTheSequencesMayDieMeanwhile) {
  const int streams = 4;
  const std::vector<Answer> undisturbed = Undisturbed(streams);
  const auto running = Begin(streams, 20);
  EndAndAwaitMoves("decode-0", "decode-1");
  kill(cluster_.pid("decode-1"), SIGKILL);
  for (int i = 0; i < streams; ++i) ExpectWhole(running[i]->answer(), undisturbed[i]);
  cluster_.ExpectAllFree();
}

TEST_F(MoveProcessTest, WhoIsToEndMayDieMeanwhile) {
  const int streams = 4;
  const std::vector<Answer> undisturbed = Undisturbed(streams);
  const auto running = Begin(streams, 20);
  EndAndAwaitMoves("decode-1", "decode-0");
  kill(cluster_.pid("decode-1"), SIGKILL);
  for (int i = 0; i < streams; ++i) ExpectWhole(running[i]->answer(), undisturbed[i]);
  cluster_.ExpectAllFree();
}

TEST_F(MoveProcessTest, AClientThatLeavesMeanwhileLeavesNoLease) {
  const auto running = Begin(4, 20);
  EndAndAwaitMoves("decode-0", "decode-1");
  for (const auto& each : running) each->Cancel();
  for (const auto& each : running) each->answer();
  cluster_.ExpectAllFree();
}

class OneDecodeWorkerMoveTest : public MoveProcessTest {
 protected:
  OneDecodeWorkerMoveTest() : MoveProcessTest({"--prefill", "1", "--decode", "1"}) {}
};

TEST_F(OneDecodeWorkerMoveTest, WithNoOtherOneTheAnswerIsEndedWhereItIs) {
  const std::vector<Answer> undisturbed = Undisturbed(1);
  const auto running = Begin(1, 20);
  kill(cluster_.pid("decode-0"), SIGTERM);
  ExpectWhole(running[0]->answer(), undisturbed[0]);
  EXPECT_EQ(running[0]->answer().finished.failovers(), 0);
  EXPECT_EQ(Moves("moved"), 0);
  EXPECT_GE(Moves("no_room"), 1);
}

class CodedKvMoveTest : public MoveProcessTest {
 protected:
  CodedKvMoveTest() : MoveProcessTest({"--prefill", "1", "--decode", "2", "--kv-bits", "8"}) {}
};

// Its newest rows are not in the store.
TEST_F(CodedKvMoveTest, SequencesWithKvInFewerBitsStayAndTheLogSaysWhy) {
  const auto running = Begin(2, 5);
  kill(cluster_.pid("decode-0"), SIGTERM);
  kill(cluster_.pid("decode-1"), SIGTERM);
  for (const auto& each : running) {
    EXPECT_TRUE(each->answer().status.ok()) << each->answer().status.error_message();
    EXPECT_EQ(each->answer().ids.size(), static_cast<size_t>(kMovedOutput));
  }
  EXPECT_EQ(Moves("moved") + Moves("no_room"), 0) << "it was not asked";
  EXPECT_NE(cluster_.Log().find("its sequences do not move"), std::string::npos);
}

}  // namespace
}  // namespace runahead
