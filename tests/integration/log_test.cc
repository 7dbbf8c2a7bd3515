// What the processes log: a line for each request, its fields beside those of the answer; levels by signal; no prompts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>
#include <sys/wait.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ServingProcess;

constexpr char kSecret[] = "a-secret \"of\" theirs\n\x07";

// Two prefill workers, a decode worker and a router, all with `options`.
class LogTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& options, const std::vector<std::string>& of_router = {}) {
    std::vector<std::string> router = {RUNAHEAD_ROUTER, "--model", model_};
    for (const char* const name : {"prefill-0", "prefill-1", "decode-0"}) {
      const std::string role = std::string(name).substr(0, std::string(name).find('-'));
      std::vector<std::string> worker = {RUNAHEAD_WORKER, "--role", role,      "--name", name, "--threads", "1",
                                         "--model",       model_,   "--dtype", "f32"};
      worker.insert(worker.end(), options.begin(), options.end());
      workers_.push_back(std::make_unique<ServingProcess>(worker));
      ASSERT_FALSE(workers_.back()->address.empty()) << workers_.back()->process.err();
      router.insert(router.end(), {"--workers", absl::StrCat("role=", role, ",address=", workers_.back()->address)});
    }
    router.insert(router.end(), options.begin(), options.end());
    router.insert(router.end(), of_router.begin(), of_router.end());
    router_ = std::make_unique<ServingProcess>(router);
    ASSERT_FALSE(router_->address.empty()) << router_->process.err();
    stub_ = v1::Inference::NewStub(grpc::CreateChannel(router_->address, grpc::InsecureChannelCredentials()));
    ASSERT_TRUE(Eventually([&] {
      v1::ListModelsResponse models;
      grpc::ClientContext context;
      return stub_->ListModels(&context, {}, &models).ok() && models.models(0).prefill_workers() == 2 &&
             models.models(0).decode_workers() == 1;
    }));
  }
  // Ends them all; what each of them has logged, the router's first.
  std::vector<std::string> Logs() {
    std::vector<std::string> logs;
    router_->process.Signal(SIGTERM);
    EXPECT_EQ(router_->process.Wait(), 0);
    logs.push_back(router_->process.err());
    for (const auto& worker : workers_) {
      worker->process.Signal(SIGTERM);
      EXPECT_EQ(worker->process.Wait(), 0);
      logs.push_back(worker->process.err());
    }
    return logs;
  }
  // Has the router log, unread, until its pipe and what it keeps beside are full. Every request here is refused with a
  // line of its own.
  void FillLogOfRouter() {
    const double before = DroppedByRouter();
    ASSERT_GE(before, 0);
    v1::GenerateRequest refused = Uncached(RequestOf({1}, 0));
    refused.set_request_id(std::string(100, 'r'));
    for (int i = 0; i < 20'000; ++i) {
      const grpc::Status status = GenerateOver(*stub_, refused).status;
      ASSERT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
      if (i % 100 == 0 && DroppedByRouter() > before) return;
    }
    FAIL() << "nothing was dropped";
  }
  double DroppedByRouter() {
    httplib::Client client("http://" + router_->metrics);
    client.set_read_timeout(60);
    const httplib::Result page = client.Get("/metrics");
    double dropped = -1;
    for (const absl::string_view line : absl::StrSplit(page ? page->body : "", '\n')) {
      const absl::string_view name = "runahead_log_lines_dropped_total ";
      if (absl::StartsWith(line, name)) dropped = std::stod(std::string(line.substr(name.size())));
    }
    return dropped;
  }
  // Of lines that are JSON objects, those of requests.
  static std::vector<json> RequestsIn(const std::string& log) {
    std::vector<json> requests;
    for (const absl::string_view line : absl::StrSplit(log, '\n', absl::SkipEmpty())) {
      const json parsed = json::parse(std::string(line), nullptr, /*allow_exceptions=*/false);
      EXPECT_TRUE(parsed.is_object()) << line;
      for (const char* const name : {"time", "level", "process", "component", "message"}) {
        EXPECT_TRUE(parsed.contains(name) && parsed[name].is_string()) << line;
      }
      if (parsed["message"] == "request") requests.push_back(parsed);
    }
    return requests;
  }
  v1::GenerateRequest Chat(const std::string& text) {
    v1::GenerateRequest request = Uncached(RequestOf({}, 40));
    request.mutable_stop()->set_ignore_eos(true);
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content(text);
    return request;
  }

  const std::string model_ = WriteSynthetic(SyntheticModel(), "log");
  std::vector<std::unique_ptr<ServingProcess>> workers_;
  std::unique_ptr<ServingProcess> router_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(LogTest, ALineOfEachRequestSaysWhatTheAnswerSays) {
  Start({"--log-format", "json"});
  v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(60, 1), 6));
  request.set_request_id("it's \"mine\" \\ %v {}");
  request.mutable_stop()->set_ignore_eos(true);
  const Answer answer = GenerateOver(*stub_, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  v1::GenerateRequest bad = request;
  bad.set_request_id("bad");
  bad.mutable_stop()->set_max_tokens(1 << 20);
  ASSERT_EQ(GenerateOver(*stub_, bad).status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  bad.mutable_stop()->set_max_tokens(0);
  const Answer invalid = GenerateOver(*stub_, bad);

  // A line is written when the client has all, so those of others may come before.
  std::map<std::string, json> lines;  // by code
  for (const json& request_line : RequestsIn(Logs()[0])) lines[request_line["code"]] = request_line;
  ASSERT_EQ(lines.size(), 3);
  const json& line = lines["OK"];
  EXPECT_EQ(line["level"], "info");
  EXPECT_EQ(line["process"], "router");
  EXPECT_EQ(line["request_id"], request.request_id());
  EXPECT_EQ(line["finish_reason"], "length");
  const v1::Plan& plan = answer.started.plan();
  EXPECT_EQ(line["schedule"], plan.schedule());
  EXPECT_EQ(line["workers"], std::vector<std::string>(plan.workers().begin(), plan.workers().end()));
  EXPECT_EQ(line["parts"], std::vector<int>(plan.parts().begin(), plan.parts().end()));
  EXPECT_EQ(line["decode_worker"], "decode-0");
  EXPECT_EQ(line["prompt_tokens"], 60);
  EXPECT_EQ(line["generated_tokens"], 6);
  const v1::Timing& timing = answer.finished.timing();
  EXPECT_EQ(line["ttft_s"], timing.ttft_s());
  EXPECT_EQ(line["tpot_s"], timing.tpot_s());
  EXPECT_EQ(line["stages"].size(), timing.stages().size());
  for (const auto& [stage, seconds] : timing.stages()) EXPECT_EQ(line["stages"][stage], seconds) << stage;
  EXPECT_GE(line["total_s"], timing.ttft_s());
  EXPECT_EQ(line["failovers"], 0);
  EXPECT_FALSE(line.contains("error"));

  const json& too_long = lines["OUT_OF_RANGE"];
  EXPECT_EQ(too_long["request_id"], "bad");
  EXPECT_THAT(too_long["error"].get<std::string>(), HasSubstr("stop.max_tokens"));
  EXPECT_FALSE(too_long.contains("workers"));
  const json& refused = lines["INVALID_ARGUMENT"];  // before it has a session
  EXPECT_EQ(refused["request_id"], "bad");
  EXPECT_EQ(refused["error"], invalid.status.error_message());
}

TEST_F(LogTest, NoLineHoldsAnythingOfPromptOrAnswerWhateverHappens) {
  Start({"--log-level", "debug"});
  const Answer answer = GenerateOver(*stub_, Chat(kSecret));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_GT(answer.text.size(), 20) << "else it may stand in a line by chance";
  v1::GenerateRequest prompt = Uncached(RequestOf({}, 1 << 20));
  prompt.set_prompt(kSecret);
  EXPECT_FALSE(GenerateOver(*stub_, prompt).status.ok());
  v1::GenerateRequest swapped = Chat("user");
  swapped.mutable_chat()->mutable_messages(0)->set_role(kSecret);
  EXPECT_FALSE(GenerateOver(*stub_, swapped).status.ok());
  v1::GenerateRequest stop = Chat("x");
  stop.mutable_stop()->add_stop(kSecret);
  stop.mutable_stop()->add_stop("");
  EXPECT_FALSE(GenerateOver(*stub_, stop).status.ok());
  for (const std::string& log : Logs()) {
    EXPECT_THAT(log, Not(HasSubstr("a-secret")));
    EXPECT_THAT(log, Not(HasSubstr(answer.text)));
  }
}

TEST_F(LogTest, WherePromptsAreAskedForTheyStandEscapedAndCutInTheLineOfTheRequest) {
  Start({"--log-format", "json"}, {"--log-prompts"});
  ASSERT_TRUE(GenerateOver(*stub_, Chat(kSecret)).status.ok());
  v1::GenerateRequest longer = Uncached(RequestOf({}, 1));
  longer.set_prompt(kSecret + std::string(3000, 'x'));
  GenerateOver(*stub_, longer);
  const std::vector<std::string> logs = Logs();
  const std::vector<json> lines = RequestsIn(logs[0]);
  ASSERT_EQ(lines.size(), 2);
  std::string whole = lines[0]["prompt"], cut = lines[1]["prompt"];
  if (whole.size() > cut.size()) std::swap(whole, cut);  // their lines come in any order
  EXPECT_THAT(whole, HasSubstr(kSecret)) << "with what the template adds";
  EXPECT_EQ(cut, (kSecret + std::string(3000, 'x')).substr(0, 1000) + "...");
  for (size_t i = 1; i < logs.size(); ++i) EXPECT_THAT(logs[i], Not(HasSubstr("a-secret")));
}

TEST_F(LogTest, AReaderThatStandsStillStopsNobodyAndLearnsHowManyLinesAreMissing) {
  Start({});
  FillLogOfRouter();
  const v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(20, 1), 4));
  const Answer answer = GenerateOver(*stub_, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_TRUE(router_->process.ReadErrUntil("lines are missing here: they came faster than the log was read lines="));

  FillLogOfRouter();
  router_->process.Signal(SIGTERM);
  EXPECT_TRUE(Eventually([&] {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(router_->process.pid()), &info, WEXITED | WNOWAIT | WNOHANG) == 0 &&
           info.si_pid != 0;
  })) << "it waits for a reader of its log";
  const std::vector<std::string> lines = absl::StrSplit(Logs()[0], '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    EXPECT_THAT(line, ::testing::ContainsRegex("^[0-9]+-[0-9]+-[0-9]+T[0-9:.]+Z [DIWE] router \\[[a-z]+\\] "))
        << "a torn line";
  }
}

TEST_F(LogTest, SignalsMoveTheLevelOfARunningProcess) {
  Start({});
  testing::TestProcess& decode = workers_.back()->process;
  const v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(20, 1), 4));
  ASSERT_TRUE(GenerateOver(*stub_, request).status.ok());
  EXPECT_THAT(decode.err(), Not(HasSubstr(" D decode-0 ")));
  decode.Signal(SIGUSR1);
  ASSERT_TRUE(decode.ReadErrUntil("[log] the log level is debug now\n"));
  ASSERT_TRUE(GenerateOver(*stub_, request).status.ok());
  ASSERT_TRUE(decode.ReadErrUntil(" D decode-0 [decode] request "));

  testing::TestProcess& router = router_->process;
  router.Signal(SIGUSR2);
  ASSERT_TRUE(router.ReadErrUntil("[log] the log level is warning now\n"));
  const size_t so_far = router.err().size();
  ASSERT_TRUE(GenerateOver(*stub_, request).status.ok());
  const std::string log = Logs()[0];
  EXPECT_THAT(log.substr(so_far), Not(HasSubstr("[session] request")));
}

}  // namespace
}  // namespace runahead
