#include "client/bench/router_door.h"

#include <memory>
#include <utility>
#include <vector>

#include "client/base/connection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/bench/heard_answer.h"
#include "tests/client/generate/fake_inference.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using testing::FakeInference;
using ::testing::HasSubstr;
using testing::HeardAnswer;
using Writer = FakeInference::Writer;

std::unique_ptr<RouterDoor> OpenDoor(const FakeInference& router, absl::Duration timeout = absl::InfiniteDuration()) {
  std::vector<std::unique_ptr<RouterDoor::Stub>> stubs;
  for (int i = 0; i < 2; ++i) {
    auto stub = Connect({router.address()});
    EXPECT_TRUE(stub.ok()) << stub.status();
    stubs.push_back(*std::move(stub));
  }
  return std::make_unique<RouterDoor>(std::move(stubs), "m", timeout);
}

std::shared_ptr<HeardAnswer> Ask(RouterDoor& door, const BenchRequest& request = {.ids = {4, 5}, .max_tokens = 3}) {
  auto answer = std::make_shared<HeardAnswer>();
  door.Ask(request, answer);
  return answer;
}

TEST(ToGenerateRequest, IsGreedyAndOfOneInput) {
  const v1::GenerateRequest ids = ToGenerateRequest({.ids = {4, 5}, .max_tokens = 3, .ignore_eos = true}, "m");
  EXPECT_THAT(ids.token_ids().ids(), ElementsAre(4, 5));
  EXPECT_EQ(ids.model(), "m");
  EXPECT_EQ(ids.stop().max_tokens(), 3);
  EXPECT_TRUE(ids.stop().ignore_eos());
  EXPECT_TRUE(ids.sampling().has_temperature());
  EXPECT_EQ(ids.sampling().temperature(), 0);
  EXPECT_EQ(ToGenerateRequest({.prompt = "One"}, "").prompt(), "One");
  const v1::GenerateRequest chat = ToGenerateRequest({.messages = {{"user", "Hi"}}}, "");
  ASSERT_EQ(chat.chat().messages_size(), 1);
  EXPECT_EQ(chat.chat().messages(0).role(), "user");
  EXPECT_EQ(chat.chat().messages(0).content(), "Hi");
}

TEST(RouterDoor, AMessageIsOneArrivalOfItsIds) {
  FakeInference router([](const v1::GenerateRequest& request, Writer& writer) {
    EXPECT_THAT(request.token_ids().ids(), ElementsAre(4, 5));
    v1::GenerateResponse started = testing::Started();
    started.mutable_started()->set_prompt_tokens(2);
    writer.Write(started);
    writer.Write(testing::Text("a"));
    v1::GenerateResponse two = testing::Text("bc");
    two.mutable_tokens()->add_ids(9);
    writer.Write(two);
    v1::GenerateResponse finished = testing::Finished();
    finished.mutable_finished()->mutable_usage()->set_prompt_tokens(2);
    finished.mutable_finished()->mutable_usage()->set_completion_tokens(3);
    finished.mutable_finished()->mutable_usage()->set_cached_prompt_tokens(1);
    writer.Write(finished);
    return absl::OkStatus();
  });
  const auto door = OpenDoor(router);
  const auto answer = Ask(*door);
  EXPECT_TRUE(answer->Await().ok());
  EXPECT_THAT(answer->arrivals(), ElementsAre(1, 2));
  EXPECT_EQ(answer->counts().input_tokens, 2);
  EXPECT_EQ(answer->counts().output_tokens, 3);
  EXPECT_EQ(answer->counts().cached_tokens, 1);
}

TEST(RouterDoor, FailuresAreTheServices) {
  FakeInference router([](const v1::GenerateRequest&, Writer& writer) {
    writer.Write(testing::Text("a"));
    return absl::ResourceExhaustedError("full");
  });
  const auto door = OpenDoor(router);
  const auto answer = Ask(*door);
  EXPECT_EQ(answer->Await().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(answer->arrivals(), ElementsAre(1));
}

TEST(RouterDoor, AStreamWithoutItsLastMessageHasFailed) {
  FakeInference router([](const v1::GenerateRequest&, Writer& writer) {
    writer.Write(testing::Text("a"));
    return absl::OkStatus();
  });
  const auto door = OpenDoor(router);
  const absl::Status status = Ask(*door)->Await();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("finished"));
}

TEST(RouterDoor, CancelEndsWhatIsUnderWayAndWhatComesLater) {
  FakeInference router([](const v1::GenerateRequest&, Writer& writer) {
    testing::WriteForEver(writer);
    return absl::OkStatus();
  });
  const auto door = OpenDoor(router);
  std::vector<std::shared_ptr<HeardAnswer>> answers;
  for (int i = 0; i < 4; ++i) answers.push_back(Ask(*door));
  for (const auto& answer : answers) answer->AwaitArrivals(1);
  door->Cancel();
  for (const auto& answer : answers) EXPECT_TRUE(absl::IsCancelled(answer->Await()));
  EXPECT_TRUE(absl::IsCancelled(Ask(*door)->Await()));
}

TEST(RouterDoor, ItsEndWaitsForItsCalls) {
  FakeInference router([](const v1::GenerateRequest&, Writer& writer) {
    testing::WriteForEver(writer);
    return absl::OkStatus();
  });
  auto door = OpenDoor(router);
  const auto answer = Ask(*door);
  answer->AwaitArrivals(1);
  door.reset();
  EXPECT_TRUE(absl::IsCancelled(answer->Await()));
}

TEST(RouterDoor, ARequestHasATimeLimit) {
  FakeInference router([](const v1::GenerateRequest&, Writer& writer) {
    testing::WriteForEver(writer);
    return absl::OkStatus();
  });
  const auto door = OpenDoor(router, absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(*door)->Await()));
}

}  // namespace
}  // namespace runahead
