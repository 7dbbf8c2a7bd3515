// Answers whose decode worker drains: they go on on another one, behind the tokens that the router has, and KV that is
// there.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/rpc/status.h"
#include "tests/server/router/faults_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::FakeWorker;
using testing::Got;

constexpr int kOutputOfMoved = 12;

class MoveTest : public testing::FaultsFixture {
 protected:
  // Two decode workers, or more, whose streams stop behind so many tokens.
  void StartHeld(int64_t tokens, const std::string& trace = "off", int workers = 2) {
    Start({.decode = workers, .trace = trace, .able = [](v1::Capabilities& able) { able.set_moves(true); }});
    AwaitReady(2, workers);
    Decode(tokens);
  }
  void Decode(int64_t tokens) {
    for (auto& worker : decode_) worker->Change([tokens](FakeBehaviour& b) { b.decode_until = tokens; });
  }
  static std::vector<int32_t> Whole() {
    std::vector<int32_t> ids(kOutputOfMoved);
    for (int i = 0; i < kOutputOfMoved; ++i) ids[i] = 100 + i;
    return ids;
  }
  static void ReadTokens(Call& call, int count) {
    for (int tokens = 0; tokens < count;) {
      const auto response = call.Read();
      ASSERT_TRUE(response.has_value());
      tokens += response->tokens().ids_size();
    }
  }
  FakeWorker& From() { return *decode_[from_]; }
  FakeWorker& To() { return *decode_[1 - from_]; }
  using Change = std::function<void(FakeBehaviour&)>;
  // A call that has four tokens when its decode worker drains, and may get one more; the other worker gives all. The
  // sequence may be asked to move at once, so workers that are to behave otherwise do so before.
  std::unique_ptr<Call> DrainUnder(const v1::GenerateRequest& request, const Change& from = nullptr,
                                   const Change& to = nullptr) {
    auto call = std::make_unique<Call>(*stub_, request);
    ReadTokens(*call, 4);
    const auto decodes = [](const auto& worker) { return !worker->decode_requests().empty(); };
    from_ = std::find_if(decode_.begin(), decode_.end(), decodes) - decode_.begin();
    if (from != nullptr) From().Change(from);
    if (to != nullptr) To().Change(to);
    From().SendDraining();
    AwaitReady(2, static_cast<int>(decode_.size()) - 1);
    return call;
  }
  std::unique_ptr<Call> DrainUnder() { return DrainUnder(Ids(5, kOutputOfMoved)); }
  void Go(FakeWorker& worker, int64_t tokens = 1 << 30) {
    worker.Change([tokens](FakeBehaviour& b) { b.decode_until = tokens; });
  }
  // The sequence of `call` has moved, and its worker, which does not end its stream, is waited for because of spans.
  std::unique_ptr<Call> MoveAndHold() {
    StartHeld(3, "all");
    auto call = DrainUnder(Ids(5, kOutputOfMoved), [](FakeBehaviour& b) { b.ends_moved = false; });
    Go(From(), 4);
    EXPECT_TRUE(MetricBecomes("runahead_moves_total{result=\"moved\"}", 1));
    return call;
  }
  double Moves(const char* result) { return Metric(absl::StrCat("runahead_moves_total{result=\"", result, "\"}")); }
  double Failovers() { return Metric("runahead_failovers_total{cause=\"worker_lost\",stage=\"decode\"}"); }
  static void ExpectWhole(const Got& got) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.ids(), Whole()) << "each once";
    EXPECT_EQ(got.finished().failovers(), 0);
  }
  // A worker died. Its call may end before its control stream: then it is asked once more.
  static void ExpectWholeBehindADeath(const Got& got) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.ids(), Whole()) << "each once";
    EXPECT_GE(got.finished().failovers(), 1);
  }

  size_t from_ = 0;
};

TEST_F(MoveTest, AnAnswerGoesOnOnAnotherWorkerWithTheKvThatIsThere) {
  StartHeld(3);
  const auto call = DrainUnder();
  Go(To());
  Go(From(), 4);
  ExpectWhole(call->Finish());
  const v1::MoveSequence move = From().AwaitMoves(1).at(0);
  EXPECT_EQ(move.target().link_address(), absl::StrCat("link of decode-", 1 - from_));
  EXPECT_EQ(move.target().incarnation(), To().incarnation());
  EXPECT_EQ(move.most_tokens(), 5 + kOutputOfMoved - 1) << "all that it may come to have but the last one's";
  const v1::ReserveRequest reserved = To().reserve_requests().back();
  EXPECT_EQ(reserved.arriving_tokens(), move.most_tokens());
  EXPECT_EQ(reserved.prompt_tokens(), 5);
  EXPECT_GE(reserved.expected_tokens(), reserved.arriving_tokens());
  const v1::DecodeRequest asked = To().decode_requests().at(0);
  EXPECT_EQ(asked.lease().number(), move.target_lease().number());
  EXPECT_EQ(asked.output_from(), 5);
  EXPECT_GE(asked.prompt_ids_size(), 5 + 4) << "it moves behind the fourth token, or behind the one that may come yet";
  EXPECT_LE(asked.prompt_ids_size(), 5 + 5);
  EXPECT_EQ(asked.moved_tokens(), asked.prompt_ids_size() - 1);
  EXPECT_EQ(Moves("moved"), 1);
  EXPECT_EQ(Metric("runahead_moved_bytes_total{result=\"moved\"}"), 1000);
  EXPECT_EQ(Failovers(), 0);
  EXPECT_EQ(prefill_[0]->AwaitStarts(0).size() + prefill_[1]->AwaitStarts(0).size(), 1u) << "nothing is rebuilt";
  From().AwaitDrained();
  To().AwaitLeases(0);
}

TEST_F(MoveTest, OneThatStaysGoesOnWhereItIs) {
  StartHeld(3);
  parts_->move_again = absl::Hours(1);  // it is asked once
  const auto call = DrainUnder(Ids(5, kOutputOfMoved), [](FakeBehaviour& b) { b.moves = false; });
  Go(From(), 5);
  From().AwaitMoves(1);
  ASSERT_TRUE(MetricBecomes("runahead_moves_total{result=\"failed\"}", 1));
  To().AwaitLeases(0);
  Go(From());
  ExpectWhole(call->Finish());
  EXPECT_TRUE(To().decode_requests().empty());
  EXPECT_EQ(Moves("moved"), 0);
}

TEST_F(MoveTest, WithoutRoomElsewhereItGoesOnWhereItIs) {
  StartHeld(3);
  const auto call = DrainUnder(Ids(5, kOutputOfMoved), nullptr, [](FakeBehaviour& b) { b.reserve = false; });
  Go(From());
  ExpectWhole(call->Finish());
  EXPECT_GE(Moves("no_room"), 1);
  EXPECT_EQ(Failovers(), 0);
  From().AwaitDrained();
}

TEST_F(MoveTest, WorkersThatDoNotSayThatTheyMoveSequencesAreNotAsked) {
  Start({.decode = 2});
  Decode(3);
  const auto call = DrainUnder();
  Go(From());
  ExpectWhole(call->Finish());
  EXPECT_TRUE(To().reserve_requests().empty());
  EXPECT_TRUE(From().AwaitMoves(0).empty());
}

TEST_F(MoveTest, ItsWorkersDeathMeanwhileIsALossAsAnyOther) {
  StartHeld(3);
  const auto call = DrainUnder(Ids(5, kOutputOfMoved), [](FakeBehaviour& b) { b.answers_moves = false; });
  Go(To());
  Go(From(), 4);
  From().AwaitMoves(1);
  decode_[from_].reset();
  ExpectWholeBehindADeath(call->Finish());
  EXPECT_EQ(Moves("lost"), 1);
  To().AwaitLeases(0);
}

TEST_F(MoveTest, TheOtherOnesDeathMeanwhileIsNoLoss) {
  StartHeld(3);
  const auto call = DrainUnder(Ids(5, kOutputOfMoved), [](FakeBehaviour& b) { b.answers_moves = false; });
  Go(From(), 4);
  From().AwaitMoves(1);
  decode_[1 - from_].reset();
  AwaitReady(2, 0);
  From().Change([](FakeBehaviour& b) {
    b.answers_moves = true;
    b.moves = false;
    b.decode_until = 1 << 30;
  });
  ExpectWhole(call->Finish());
  EXPECT_EQ(Moves("failed"), 1);
  EXPECT_EQ(Failovers(), 0);
}

// It has stopped where it was, and is nowhere else.
TEST_F(MoveTest, ADeathBehindTheMoveIsALossOfTheOtherOne) {
  StartHeld(3);
  const auto call = DrainUnder();
  Go(From(), 4);
  To().AwaitDecodes(1);
  ASSERT_EQ(Moves("moved"), 1);
  const std::string address = To().address();
  decode_[1 - from_].reset();
  decode_[1 - from_] = std::make_unique<FakeWorker>(
      [&] {
        v1::Capabilities able = Able(absl::StrCat("decode-", 1 - from_), v1::WORKER_ROLE_DECODE);
        able.set_moves(true);
        return able;
      }(),
      address);
  ExpectWholeBehindADeath(call->Finish());
}

TEST_F(MoveTest, AClientThatLeavesMeanwhileLeavesNeitherLease) {
  StartHeld(3);
  const auto call = DrainUnder(Ids(5, kOutputOfMoved), [](FakeBehaviour& b) { b.answers_moves = false; });
  Go(From(), 4);
  From().AwaitMoves(1);
  EXPECT_EQ(To().leases(), 1u);
  call->Cancel();
  EXPECT_FALSE(call->Finish().status.ok());
  From().AwaitLeases(0);
  To().AwaitLeases(0);
  ASSERT_TRUE(MetricBecomes("runahead_moves_total{result=\"ended\"}", 1));
}

TEST_F(MoveTest, AnAnswerThatIsCutOffBehindTheMoveDoesNotPassForAWholeOne) {
  const auto call = MoveAndHold();
  service_->CutOff(absl::UnavailableError("this router stopped"));
  const Got got = call->Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable) << got.status;
  EXPECT_TRUE(got.responses.back().has_tokens()) << "it is not finished";
  From().AwaitLeases(0);
  To().AwaitLeases(0);
}

TEST_F(MoveTest, AClientThatLeavesBehindTheMoveHasNoWholeAnswer) {
  const auto call = MoveAndHold();
  call->Cancel();
  EXPECT_FALSE(call->Finish().status.ok());
  EXPECT_TRUE(MetricBecomes("runahead_requests_total{code=\"CANCELLED\",model=\"tiny\"}", 1));
  From().AwaitLeases(0);
  To().AwaitLeases(0);
}

TEST_F(MoveTest, WhatHasMovedDoesNotWaitForTheEndOfItsOldStream) {
  StartHeld(3);
  const auto call = DrainUnder(Ids(5, kOutputOfMoved), [](FakeBehaviour& b) { b.ends_moved = false; });
  Go(To());
  Go(From(), 4);
  ExpectWhole(call->Finish());
  EXPECT_EQ(Failovers(), 0);
}

TEST_F(MoveTest, WhatIsTracedDoesNotWaitForSpansForEver) {
  const auto call = MoveAndHold();
  Go(To());
  ExpectWhole(call->Finish());
  EXPECT_EQ(Failovers(), 0);
}

TEST_F(MoveTest, AWorkerThatDoesNotAnswerIsNotAskedBehindEachToken) {
  StartHeld(3);
  parts_->move_patience = absl::Milliseconds(500);
  const auto call = DrainUnder(Ids(5, kOutputOfMoved), nullptr, [](FakeBehaviour& b) { b.answers_leases = false; });
  Go(From());
  ExpectWhole(call->Finish());
  EXPECT_LT(Moves("no_room"), 4);
}

TEST_F(MoveTest, WhoDidNotTakeASequenceIsLeftOutWhereAnotherOneMayTakeIt) {
  StartHeld(3, "off", /*workers=*/3);
  parts_->move_again = absl::ZeroDuration();  // it is asked for again behind the next token
  const auto call = DrainUnder(Ids(5, 2000), [](FakeBehaviour& b) { b.moves = false; });
  int64_t tokens = 4;
  for (Go(From(), tokens); From().AwaitMoves(0).size() < 2 && tokens < 1900; ReadTokens(*call, 1)) {
    Go(From(), ++tokens);
  }
  const std::vector<v1::MoveSequence> moves = From().AwaitMoves(2);
  EXPECT_NE(moves[0].target().name(), moves[1].target().name());
  call->Cancel();
  call->Finish();
}

TEST_F(MoveTest, AnAnswerThatEndsMeanwhileLeavesNoLease) {
  StartHeld(3);
  const auto call = DrainUnder(Ids(5, kOutputOfMoved), [](FakeBehaviour& b) { b.answers_moves = false; });
  Go(From(), 4);
  From().AwaitMoves(1);
  Go(From());
  ExpectWhole(call->Finish());
  To().AwaitLeases(0);
  ASSERT_TRUE(MetricBecomes("runahead_moves_total{result=\"ended\"}", 1));
}

TEST_F(MoveTest, AFewMoveAtOnceAndTheOthersWhenTheseHave) {
  StartHeld(3);
  // All on one worker: the other one has no room yet.
  decode_[1]->Change([](FakeBehaviour& b) { b.reserve = false; });
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < MovePlaces::kMost + 2; ++i) {
    calls.push_back(std::make_unique<Call>(*stub_, Ids(5, kOutputOfMoved)));
    ReadTokens(*calls.back(), 4);
  }
  decode_[1]->Change([](FakeBehaviour& b) { b.reserve = true; });
  Go(To());
  From().Change([](FakeBehaviour& b) { b.answers_moves = false; });
  From().SendDraining();
  AwaitReady(2, 1);
  Go(From(), 5);
  From().AwaitMoves(MovePlaces::kMost);
  for (auto& call : calls) ReadTokens(*call, 2);
  EXPECT_EQ(From().AwaitMoves(0).size(), static_cast<size_t>(MovePlaces::kMost));
  From().Change([](FakeBehaviour& b) { b.answers_moves = true; });
  To().AwaitDecodes(MovePlaces::kMost);  // their places are others'
  Go(From(), 6);
  for (auto& call : calls) ExpectWhole(call->Finish());
  EXPECT_EQ(Moves("moved"), MovePlaces::kMost + 2);
}

TEST_F(MoveTest, ATraceShowsIt) {
  StartHeld(3, "all");
  const auto call = DrainUnder();
  Go(To());
  Go(From(), 4);
  const Got got = call->Finish();
  ExpectWhole(got);
  v1::GetTraceRequest request;
  request.set_request_id(got.started().request_id());
  v1::Trace trace;
  grpc::Status status;
  do {  // it may not be whole yet
    grpc::ClientContext context;
    status = stub_->GetTrace(&context, request, &trace);
  } while (!status.ok() && RetryAfter(FromGrpcStatus(status)));
  ASSERT_TRUE(status.ok()) << status.error_message();
  const auto& spans = trace.processes(0).spans();
  EXPECT_EQ(std::count_if(spans.begin(), spans.end(), [](const auto& span) { return span.name() == "move"; }), 1);
}

}  // namespace
}  // namespace runahead
