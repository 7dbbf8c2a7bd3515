#include "server/router/worker_call.h"

#include <future>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "server/base/silence.h"
#include "server/rpc/channel.h"
#include "server/task/run_here.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_worker.h"
#include "tests/testing/known_hearing.h"

namespace runahead {
namespace {

using testing::FakeBehaviour;
using testing::FakeClock;
using testing::FakeWorker;
using testing::KnownHearing;

// Asks a worker that does not answer until it is told to. Steps of the clock are no pauses, unless they are long.
class WorkerCallTest : public ::testing::Test {
 protected:
  WorkerCallTest() { Answers(false); }

  void Answers(bool answers) {
    worker_.Change([&](FakeBehaviour& b) { b.answers_leases = answers; });
  }
  std::future<absl::Status> Renew(absl::Duration patience) {
    auto answer = std::async(std::launch::async, [this, patience] {
      const v1::RenewRequest request;
      v1::RenewReply reply;
      return RunHere(
          CallWorker(clock_, hearing_, patience, {&end_, &other_end_}, [&](grpc::ClientContext* context, auto done) {
            stub_->async()->Renew(context, &request, &reply, std::move(done));
          }));
    });
    worker_.AwaitUnanswered(1);
    return answer;
  }
  void Advance(absl::Duration by) {
    clock_.AwaitWaiters(1);
    clock_.Advance(by);
  }

  FakeWorker worker_{FakeWorker::Able("d0", {v1::WORKER_ROLE_DECODE}, "f", 100)};
  const std::unique_ptr<v1::Decode::Stub> stub_ = v1::Decode::NewStub(MakeChannel(worker_.address()));
  FakeClock clock_;
  KnownHearing hearing_;
  CancelToken end_, other_end_;
};

TEST_F(WorkerCallTest, APauseOfThisProcessIsNotHeldAgainstTheWorker) {
  // So little that on the machine's clock, as a gRPC deadline, it would be over before the answer.
  auto answer = Renew(absl::Milliseconds(1));
  for (const int seconds : {4, 60, 2}) Advance(absl::Seconds(seconds));
  clock_.AwaitWaiters(1);
  Answers(true);
  EXPECT_EQ(answer.get(), absl::OkStatus());
}

TEST_F(WorkerCallTest, OneThatDoesNotAnswerIsGivenUpWhenItsTimeIsOver) {
  auto answer = Renew(absl::Milliseconds(300));
  for (int look = 0; look < 3; ++look) Advance(Silence::kLookPeriod);
  const absl::Status status = answer.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "no answer for 300ms");
}

// Was: "no answer to Reserve" of a worker that had answered, while the router was flooded.
TEST_F(WorkerCallTest, ThatThisProcessIsBehindWithReadingIsNotHeldAgainstTheWorker) {
  hearing_.Stand(clock_.Now());
  auto answer = Renew(absl::Seconds(2));
  for (int look = 0; look < 50; ++look) Advance(Silence::kLookPeriod);
  clock_.AwaitWaiters(1);
  Answers(true);
  EXPECT_EQ(answer.get(), absl::OkStatus());
}

TEST_F(WorkerCallTest, OneThatDoesNotAnswerIsGivenUpAlsoByAProcessThatIsBehindForGood) {
  hearing_.Stand(clock_.Now());
  const absl::Duration patience = absl::Seconds(2);
  auto answer = Renew(patience);
  for (absl::Duration time; time < patience + Silence::kLongestLag; time += Silence::kLookPeriod) {
    Advance(Silence::kLookPeriod);
  }
  EXPECT_EQ(answer.get().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(WorkerCallTest, ItEndsWithWhatIsToEndIt) {
  auto answer = Renew(absl::InfiniteDuration());
  other_end_.Cancel(absl::UnavailableError("the worker was lost"));
  EXPECT_EQ(answer.get(), absl::UnavailableError("the worker was lost"));
  EXPECT_EQ(Renew(absl::InfiniteDuration()).get(), absl::UnavailableError("the worker was lost")) << "at once";
}

TEST_F(WorkerCallTest, TheWorkersOwnStatusIsHandedOn) {
  const v1::ReserveRequest request;
  v1::ReserveReply reply;
  Answers(true);
  worker_.Change([](FakeBehaviour& b) { b.reserve_error = grpc::Status(grpc::StatusCode::ABORTED, "no luck"); });
  EXPECT_EQ(RunHere(CallWorker(clock_, hearing_, absl::Seconds(3), {},
                               [&](grpc::ClientContext* context, auto done) {
                                 stub_->async()->Reserve(context, &request, &reply, std::move(done));
                               })),
            absl::AbortedError("no luck"));
}

}  // namespace
}  // namespace runahead
