#include "client/measure/service_timer.h"

#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/base/connection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/generate/fake_inference.h"
#include "tests/testing/await_change.h"

namespace runahead {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::FakeInference;
using ::testing::HasSubstr;

// A router that cuts as `parts` says, from worker `first` of the line on, and took 5 s of queue, 0.25 of prefill and
// 0.125 of first_token.
void Reply(const std::vector<int>& parts, FakeInference::Writer& writer, size_t first = 0) {
  v1::GenerateResponse started = testing::Started();
  for (size_t i = 0; i < parts.size(); ++i) {
    started.mutable_started()->mutable_plan()->add_parts(parts[i]);
    started.mutable_started()->mutable_plan()->add_workers(absl::StrCat("w", first + i));
  }
  v1::GenerateResponse finished = testing::Finished();
  auto& stages = *finished.mutable_finished()->mutable_timing()->mutable_stages();
  stages["queue"] = 5;
  stages["prefill"] = 0.25;
  stages["first_token"] = 0.125;
  writer.Write(started);
  writer.Write(testing::Text("a"));
  writer.Write(finished);
}

TEST(ServiceTimer, CountsPrefillAndFirstTokenOfARandomPrompt) {
  std::vector<v1::GenerateRequest> requests;
  FakeInference router([&](const v1::GenerateRequest& request, FakeInference::Writer& writer) {
    requests.push_back(request);
    Reply({request.experiment().parts().begin(), request.experiment().parts().end()}, writer);
    return absl::OkStatus();
  });
  const auto stub = Connect({router.address()});
  ASSERT_TRUE(stub.ok()) << stub.status();
  const auto ids = ServiceTimer::OrdinaryIds(**stub);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, Each(::testing::Ge(32)));  // the fake's ids are the text's bytes; special ones would be -1
  EXPECT_THAT(*ids, Contains(1000)) << "a begin token is not ordinary";

  ServiceTimer timer(**stub, *ids);
  const auto seconds = timer.Time({60, 40});
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_EQ(*seconds, 0.375);
  EXPECT_THAT(timer.workers(), ElementsAre("w0", "w1"));
  ASSERT_TRUE(timer.Time({100}).ok());
  EXPECT_THAT(timer.workers(), ElementsAre("w0", "w1"));

  ASSERT_EQ(requests.size(), 2u);
  EXPECT_THAT(requests[0].experiment().parts(), ElementsAre(60, 40));
  EXPECT_EQ(requests[0].stop().max_tokens(), 1);
  EXPECT_TRUE(requests[0].stop().ignore_eos());
  ASSERT_EQ(requests[0].token_ids().ids_size(), 100);
  EXPECT_THAT(requests[0].token_ids().ids(), Each(::testing::AnyOfArray(*ids)));
  EXPECT_THAT(requests[1].token_ids().ids(),
              ::testing::Not(::testing::ElementsAreArray(requests[0].token_ids().ids())));
}

TEST(ServiceTimer, OtherPartsThanAskedForAreAnError) {
  FakeInference router([](const v1::GenerateRequest&, FakeInference::Writer& writer) {
    Reply({50, 50}, writer);
    return absl::OkStatus();
  });
  const auto stub = Connect({router.address()});
  ASSERT_TRUE(stub.ok()) << stub.status();
  ServiceTimer timer(**stub, {7});
  const absl::Status status = timer.Time({60, 40}).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("asked for parts 60,40, the router took 50,50"));
}

// After a run the router may find the head busy for a moment longer, and take the next worker.
TEST(ServiceTimer, FromTheHeadARunElsewhereIsRepeated) {
  int calls = 0;
  int elsewhere = 1;
  FakeInference router([&](const v1::GenerateRequest& request, FakeInference::Writer& writer) {
    ++calls;
    const bool moved = request.experiment().parts_size() == 1 && elsewhere-- > 0;
    Reply({request.experiment().parts().begin(), request.experiment().parts().end()}, writer, moved ? 1 : 0);
    return absl::OkStatus();
  });
  const auto stub = Connect({router.address()});
  ASSERT_TRUE(stub.ok()) << stub.status();
  ServiceTimer timer(**stub, {7});
  ASSERT_TRUE(timer.Time({1, 1, 1}).ok());
  EXPECT_TRUE(timer.TimeFromHead({5}).ok());
  EXPECT_TRUE(timer.TimeFromHead({5, 5}).ok());
  EXPECT_EQ(calls, 4);
  elsewhere = 100;
  const absl::Status status = timer.TimeFromHead({5}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("the router takes w1 in place of the first workers of w0, w1, w2"));
  EXPECT_LT(calls, 20);
}

TEST(ServiceTimer, CancelEndsTheCallThatRunsAndAllAfterIt) {
  Mutex mu;
  CondVar changed;
  bool running = false;
  FakeInference router([&](const v1::GenerateRequest&, FakeInference::Writer& writer) {
    {
      MutexLock lock(mu);
      running = true;
      changed.NotifyAll();
    }
    testing::WriteForEver(writer);
    return absl::OkStatus();
  });
  const auto stub = Connect({router.address()});
  ASSERT_TRUE(stub.ok()) << stub.status();
  ServiceTimer timer(**stub, {7});
  std::thread canceller([&] {
    {
      MutexLock lock(mu);
      testing::ChangeWait wait("the router has a request");
      while (!running) {
        if (!wait.Next(mu, changed)) break;
      }
    }
    timer.Cancel();
  });
  EXPECT_TRUE(absl::IsCancelled(timer.Time({60, 40}).status()));
  canceller.join();
  running = false;
  EXPECT_TRUE(absl::IsCancelled(timer.Time({60, 40}).status()));
  EXPECT_FALSE(running) << "nothing is sent any more";
}

}  // namespace
}  // namespace runahead
