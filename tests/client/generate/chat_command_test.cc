// `runahead chat` as a program, its stdin a pipe.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/generate/fake_inference.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using testing::FakeInference;
using ::testing::HasSubstr;
using testing::TestProcess;
using testing::Text;
using Writer = FakeInference::Writer;

// Answers with the conversation that it was sent; "fail" fails, and "go on" is answered until it is cancelled.
absl::Status Echo(const v1::GenerateRequest& request, Writer& writer) {
  const auto& messages = request.chat().messages();
  const std::string& question = messages.rbegin()->content();
  if (question == "fail") return absl::UnavailableError("no worker");
  if (question == "go on") {
    writer.Write(Text("on "));
    testing::WriteForEver(writer);
    return absl::CancelledError("");
  }
  std::string seen;
  for (const v1::ChatMessage& message : messages) absl::StrAppend(&seen, message.role(), "=", message.content(), ";");
  writer.Write(Text(absl::StrCat("<", seen, ">")));
  writer.Write(testing::Finished());
  return absl::OkStatus();
}

TEST(ChatCommand, KeepsTheConversation) {
  FakeInference router(Echo);
  TestProcess chat({RUNAHEAD_BINARY, "chat", "--router", router.address()});
  chat.Write("one\n");
  ASSERT_TRUE(chat.ReadOutUntil("<user=one;>\n")) << chat.err();
  chat.Write("two\n");
  ASSERT_TRUE(chat.ReadOutUntil("<user=one;assistant=<user=one;>;user=two;>\n")) << chat.err();
  chat.Write("/reset\nthree\n");
  ASSERT_TRUE(chat.ReadOutUntil("<user=three;>\n")) << chat.err();
  EXPECT_EQ(chat.Wait(), 0) << "the end of stdin ends it";
}

TEST(ChatCommand, PassesSystemMessageAndSampling) {
  FakeInference router([](const v1::GenerateRequest& request, Writer& writer) {
    EXPECT_EQ(request.sampling().temperature(), 0.5f);
    EXPECT_EQ(request.stop().max_tokens(), 9);
    return Echo(request, writer);
  });
  TestProcess chat({RUNAHEAD_BINARY, "chat", "--router", router.address(), "--system", "Be brief", "--temperature",
                    "0.5", "--max-tokens", "9"});
  chat.Write("one\n/reset\ntwo\n/exit\nthree\n");
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_EQ(chat.out(), "<system=Be brief;user=one;>\n<system=Be brief;user=two;>\n");
}

TEST(ChatCommand, ForgetsAQuestionThatFailed) {
  FakeInference router(Echo);
  TestProcess chat({RUNAHEAD_BINARY, "chat", "--router", router.address()});
  chat.Write("fail\n");
  ASSERT_TRUE(chat.ReadErrUntil("UNAVAILABLE: no worker"));
  chat.Write("\n/what\n\xff\ntwo\n");
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_EQ(chat.out(), "<user=two;>\n");
  EXPECT_THAT(chat.err(), HasSubstr("no such command"));
  EXPECT_THAT(chat.err(), HasSubstr("UTF-8"));
}

TEST(ChatCommand, CtrlCStopsAnAnswerOnly) {
  FakeInference router(Echo);
  TestProcess chat({RUNAHEAD_BINARY, "chat", "--router", router.address()});
  chat.Write("go on\n");
  ASSERT_TRUE(chat.ReadOutUntil("on ")) << chat.err();
  chat.Signal(SIGINT);
  ASSERT_TRUE(chat.ReadErrUntil("(cancelled)"));
  chat.Write("two\n");
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_THAT(chat.out(), HasSubstr("<user=go on;assistant=on ;user=two;>")) << "what was seen stays";
}

}  // namespace
}  // namespace runahead
