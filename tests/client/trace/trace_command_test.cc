// `runahead trace` and `generate --trace` as programs, against a router whose answers the test writes.
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/trace_context.h"
#include "tests/client/generate/fake_inference.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using testing::FakeInference;
using ::testing::HasSubstr;
using testing::TestProcess;
using Writer = FakeInference::Writer;

class TraceCommand : public ::testing::Test {
 protected:
  ~TraceCommand() override { unlink(file_.c_str()); }
  TestProcess Trace(const std::string& request) {
    return TestProcess({RUNAHEAD_BINARY, "trace", "--router", router_.address(), "--request", request, "-o", file_});
  }
  std::string File() const {
    std::stringstream text;
    text << std::ifstream(file_).rdbuf();
    return text.str();
  }

  FakeInference router_{[](const v1::GenerateRequest&, Writer& writer) {
    writer.Write(testing::Started());
    writer.Write(testing::Finished());
    return absl::OkStatus();
  }};
  const std::string file_ = absl::StrCat(::testing::TempDir(), "/trace_command_test-", getpid(), ".json");
};

TEST_F(TraceCommand, WritesTheFileOnceTheTraceIsWhole) {
  int asked = 0;
  router_.on_trace = [&](const v1::GetTraceRequest& request, v1::Trace& trace) -> absl::Status {
    EXPECT_EQ(request.request_id(), "r-1");
    if (++asked < 3) return WithRetryAfter(absl::NotFoundError("has not ended"), absl::Milliseconds(1));
    trace.set_request_id("r-1");
    v1::TraceProcess& process = *trace.add_processes();
    process.set_name("router");
    process.add_spans()->set_name("queue");
    return absl::OkStatus();
  };
  TestProcess process = Trace("r-1");
  EXPECT_EQ(process.Wait(), 0) << process.err();
  EXPECT_EQ(asked, 3);
  EXPECT_THAT(process.err(), HasSubstr("1 spans of 1 processes"));
  EXPECT_EQ(nlohmann::json::parse(File()).at("otherData").at("request_id"), "r-1");
}

TEST_F(TraceCommand, SaysWhyThereIsNone) {
  router_.on_trace = [](const v1::GetTraceRequest&, v1::Trace&) { return absl::NotFoundError("was not recorded"); };
  TestProcess process = Trace("r-2");
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_EQ(process.err(), "runahead trace: NOT_FOUND: was not recorded\n");
  EXPECT_EQ(access(file_.c_str(), F_OK), -1) << "no file of nothing";
}

TEST_F(TraceCommand, AFileThatCannotBeWrittenIsRefusedFirst) {
  TestProcess process(
      {RUNAHEAD_BINARY, "trace", "--router", router_.address(), "--request", "r", "-o", "/no/such/folder/t.json"});
  EXPECT_EQ(process.Wait(), 2);
  EXPECT_THAT(process.err(), HasSubstr("--output: there is no folder"));
}

TEST_F(TraceCommand, GenerateAsksToBeRecordedAndSaysHowToGoOn) {
  TestProcess plain({RUNAHEAD_BINARY, "generate", "--router", router_.address(), "--prompt", "a"});
  EXPECT_EQ(plain.Wait(), 0);
  EXPECT_EQ(router_.traceparent(), "");
  TestProcess text({RUNAHEAD_BINARY, "generate", "--router", router_.address(), "--prompt", "a", "--trace"});
  EXPECT_EQ(text.Wait(), 0);
  const auto sent = ParseTraceparent(router_.traceparent());
  ASSERT_TRUE(sent.has_value()) << router_.traceparent();
  EXPECT_TRUE(sent->sampled);
  EXPECT_THAT(text.err(), HasSubstr(sent->trace_id));
  EXPECT_THAT(text.err(), HasSubstr(absl::StrCat("runahead trace --router ", router_.address(), " --request r-1 -o ")));
  TestProcess json({RUNAHEAD_BINARY, "generate", "--router", router_.address(), "--prompt", "a", "--trace", "--json"});
  EXPECT_EQ(json.Wait(), 0);
  EXPECT_EQ(json.err(), "");
  EXPECT_EQ(nlohmann::json::parse(json.out()).at("trace_id"), ParseTraceparent(router_.traceparent())->trace_id);
}

}  // namespace
}  // namespace runahead
