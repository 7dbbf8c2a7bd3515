#include "tests/integration/faults_fixture.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "server/rpc/status.h"
#include "tests/testing/await_change.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/patience.h"

namespace runahead {
namespace {

// Clusters may begin in threads: one of them writes it.
const std::string& ModelPath() {
  static const std::string path = WriteSynthetic({.layers = 6}, "faults");
  return path;
}

// 6 layers x 2,000 tokens x 256 bytes over 0.006 Gbit/s: a prompt of 2,000 tokens is in prefill for seconds.
std::vector<std::string> Arguments(std::vector<std::string> workers) {
  workers.insert(workers.end(), {"--dtype", "f32", "--experiments", "--chain-link-gbps", "0.006"});
  return workers;
}

}  // namespace

std::string WriteQuantisedModel(const std::string& name) {
  SyntheticModel model{.layers = 4};
  model.hidden = 256;
  model.heads = 8;
  model.head_dim = 32;
  model.ffn = 512;
  model.SetWeightType(WeightType::kQ4_1);
  return WriteSynthetic(model, name);
}

std::unique_ptr<v1::Inference::Stub> OwnStub(const std::string& router) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // no connection is shared
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  return v1::Inference::NewStub(grpc::CreateCustomChannel(router, grpc::InsecureChannelCredentials(), arguments));
}

Running::Running(const LocalCluster& cluster, const v1::GenerateRequest& request, absl::Duration patience)
    : stub_(OwnStub(cluster.router())) {
  context_.set_deadline(absl::ToChronoTime(absl::Now() + patience));
  thread_ = std::thread([this, request] {
    answer_ = GenerateOver(*stub_, request, &context_, [this](size_t tokens) { tokens_ = tokens; });
  });
}

Running::~Running() {
  if (thread_.joinable()) thread_.join();
}

const Answer& Running::answer() {
  if (thread_.joinable()) thread_.join();
  return answer_;
}

Load::Load(const LocalCluster& cluster, std::vector<Request> requests)
    : requests_(std::move(requests)), answers_(requests_.size()) {
  // All of them before the first client looks for its own.
  for (size_t client = 0; client < requests_.size(); ++client) stubs_.push_back(OwnStub(cluster.router()));
  for (size_t client = 0; client < requests_.size(); ++client) threads_.emplace_back([this, client] { Run(client); });
}

Load::~Load() {
  if (!threads_.empty()) Stop();
}

void Load::Run(size_t client) {
  while (true) {
    Answer answer = GenerateOver(*stubs_[client], requests_[client].request);
    MutexLock lock(mu_);
    answers_[client].push_back(std::move(answer));
    changed_.NotifyAll();
    if (stopping_) return;
  }
}

void Load::AwaitRound() {
  MutexLock lock(mu_);
  std::vector<size_t> want;
  // The request that runs now began before.
  for (const std::vector<Answer>& answers : answers_) want.push_back(answers.size() + 2);
  const auto all = [&]() RUNAHEAD_REQUIRES(mu_) {
    for (size_t client = 0; client < want.size(); ++client) {
      if (answers_[client].size() < want[client]) return false;
    }
    return true;
  };
  testing::ChangeWait wait("each client has had another answer", testing::Patience(LocalCluster::kPatience));
  while (!all()) {
    if (!wait.Next(mu_, changed_)) return;
  }
}

void Load::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  MutexLock lock(mu_);
  int may_know = 0, known = 0;
  for (size_t client = 0; client < answers_.size(); ++client) {
    may_know += !requests_[client].request.no_cache();
    for (const Answer& answer : answers_[client]) {
      SCOPED_TRACE(absl::StrCat("on ", absl::StrJoin(answer.started.plan().workers(), ", "), "; ",
                                answer.started.plan().decode_worker()));
      FaultsCluster::ExpectUnharmed(answer, requests_[client].ids);
      known += answer.finished.usage().cached_prompt_tokens() > 0;
    }
  }
  EXPECT_TRUE(known > 0 || may_know == 0);
}

void StopProcess(pid_t pid) {
  kill(pid, SIGSTOP);
  const auto all_stand = [pid] {
    for (const auto& task : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
      std::ifstream file(task.path() / "stat");
      const std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
      // The state comes after the name, which ends with the last parenthesis.
      const size_t name_end = stat.rfind(") ");
      if (name_end != std::string::npos && stat[name_end + 2] != 'T') return false;
    }
    return true;
  };
  EXPECT_TRUE(Eventually(all_stand)) << pid << " runs on";
}

void PauseFor(absl::Duration duration, pid_t pid) {
  StopProcess(pid);
  absl::SleepFor(duration);  // what is tested: a pause of this length
  kill(pid, SIGCONT);
}

FaultsCluster::FaultsCluster(std::vector<std::string> workers, const std::vector<std::string>& environment)
    : cluster_(ModelPath(), Arguments(std::move(workers)), environment) {
  for (const auto& [name, pid] : cluster_.pids()) line_ += absl::StartsWith(name, "prefill");
}

v1::GenerateRequest FaultsCluster::LongPrompt(int width) {
  v1::GenerateRequest request = RequestOf(SyntheticIds(2000, 1), 8);
  request.mutable_experiment()->set_width(width);
  return request;
}

v1::GenerateRequest FaultsCluster::ShortPrompt(int width) {
  v1::GenerateRequest request = RequestOf(SyntheticIds(8, 2), 4);
  request.mutable_experiment()->set_width(width);
  return request;
}

v1::GenerateRequest FaultsCluster::LongAnswer() {
  v1::GenerateRequest request = RequestOf(SyntheticIds(8, 3), 1000);
  request.mutable_experiment()->set_width(1);
  return request;
}

std::vector<Load::Request> FaultsCluster::MixedLoad() {
  std::vector<Load::Request> load;
  const auto add = [&](const v1::GenerateRequest& request) {
    load.push_back({request, cluster_.GenerateEventually(Uncached(request)).ids});
    EXPECT_EQ(load.back().ids.size(), 60u);
  };
  // As many workers as the planner likes: one for every 16 tokens. Computed anew each time: edges and hand-offs stay in
  // use.
  for (const int tokens : {12, 40, 13, 41}) add(Uncached(RequestOf(SyntheticIds(tokens, tokens), 60)));
  // With one beginning, and known as a whole from the second time on.
  for (const int tokens : {20, 30}) {
    std::vector<int32_t> ids = SyntheticIds(64, 7);
    const std::vector<int32_t> own = SyntheticIds(tokens, tokens);
    ids.insert(ids.end(), own.begin(), own.end());
    add(RequestOf(ids, 60));
  }
  return load;
}

std::unique_ptr<Running> FaultsCluster::BeginLongPrompt(const v1::GenerateRequest& request, absl::Duration patience) {
  const auto received = [&] { return cluster_.Sum("prefill-1", "runahead_link_bytes_total{direction=\"receive\""); };
  const double before = received();
  auto running = std::make_unique<Running>(cluster_, request, patience);
  EXPECT_TRUE(Eventually([&] { return received() > before; }));
  return running;
}

std::unique_ptr<Running> FaultsCluster::BeginLongAnswer() {
  auto running = std::make_unique<Running>(cluster_, LongAnswer());
  EXPECT_TRUE(Eventually([&] { return running->tokens() >= 3; }));
  return running;
}

v1::GenerateRequest FaultsCluster::KnownAnswer() {
  return RequestOf(SyntheticIds(100, 9), 2500);
}

std::unique_ptr<Running> FaultsCluster::BeginKnownAnswer(const v1::GenerateRequest& request) {
  v1::GenerateRequest before = request;
  before.mutable_stop()->set_max_tokens(2);
  EXPECT_TRUE(cluster_.GenerateEventually(before).status.ok());
  cluster_.ExpectAllFree();
  auto running = std::make_unique<Running>(cluster_, request);
  EXPECT_TRUE(Eventually([&] { return running->tokens() >= 3; }));
  return running;
}

v1::GenerateRequest FaultsCluster::RequestFor(Stage stage) {
  v1::GenerateRequest request;
  switch (stage) {
    case Stage::kReserve:
      return ShortPrompt(2);
    case Stage::kPrefill:
      return LongPrompt();
    case Stage::kHandoff:
      // A member's slice is more than what travels with its header: it leaves when decode grants a place.
      request = RequestOf(SyntheticIds(100, 5), 4);
      request.mutable_experiment()->set_width(2);
      return request;
    case Stage::kDecode:
      return LongAnswer();
  }
  return request;
}

Staged FaultsCluster::BeginAt(Stage stage) {
  if (stage == Stage::kPrefill) return {BeginLongPrompt(), {}};
  if (stage == Stage::kDecode) return {BeginLongAnswer(), {}};
  const pid_t decode = cluster_.pid("decode-0"), head = cluster_.pid("prefill-0");
  const char* const kBuffers = "runahead_prefill_buffer_bytes";
  const char* const kRequests = "runahead_requests_in_flight";
  const double requests = cluster_.Metric("router", kRequests);
  Staged staged;
  if (stage == Stage::kReserve) {
    StopProcess(decode);
    staged.decode_stands_since = absl::Now();
    staged.running = std::make_unique<Running>(cluster_, RequestFor(stage));
    EXPECT_TRUE(Eventually([&] { return cluster_.Metric("router", kRequests) == requests + 1; }));
    return staged;
  }
  // Decode stands still once the router knows that its memory is reserved (the tail has the job), before prefill
  // begins: the first token comes, and nobody's hand-off ends.
  EXPECT_TRUE(Eventually([&] { return cluster_.Metric("prefill-1", kBuffers) == 0; }));  // what began before has left
  StopProcess(head);
  staged.running = std::make_unique<Running>(cluster_, RequestFor(stage));
  EXPECT_TRUE(Eventually([&] { return cluster_.Metric("prefill-1", kBuffers) > 0; }));
  StopProcess(decode);
  staged.decode_stands_since = absl::Now();
  kill(head, SIGCONT);
  EXPECT_TRUE(Eventually([&] { return staged.running->tokens() == 1; }));
  return staged;
}

void FaultsCluster::ExpectServiceAgain() {
  const Answer whole = cluster_.GenerateEventually(ShortPrompt(line_));
  EXPECT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_EQ(whole.ids.size(), 4u);
  for (const char* kind : {"edge", "handoff"}) {
    const std::string broken = absl::StrCat("runahead_broken_paths{kind=\"", kind, "\"}");
    EXPECT_TRUE(Eventually([&] { return cluster_.Metric("router", broken) == 0; })) << kind;
  }
  cluster_.ExpectAllFree();
}

void FaultsCluster::ExpectNoStreamEnds(const std::function<void()>& body) {
  // As workers log it.
  const auto ended = [this] { return std::vector<std::string>(absl::StrSplit(cluster_.Log(), "stream ended")).size(); };
  for (int attempt = 0; attempt < 3; ++attempt) {
    const size_t before = ended();
    body();
    if (ended() == before) return;
  }
  ADD_FAILURE() << "a control stream ended each time";
}

void FaultsCluster::ExpectFailed(const Answer& answer, const std::vector<int32_t>& undisturbed,
                                 const std::string& worker) {
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE) << answer.status.error_message();
  EXPECT_THAT(answer.status.error_message(), ::testing::HasSubstr(worker));
  // Where the router ended it, it says so.
  EXPECT_TRUE(worker.empty() || RetryAfter(FromGrpcStatus(answer.status)).has_value());
  ASSERT_LE(answer.ids.size(), undisturbed.size());
  EXPECT_TRUE(std::equal(answer.ids.begin(), answer.ids.end(), undisturbed.begin()));
}

void FaultsCluster::ExpectUnharmed(const Answer& answer, const std::vector<int32_t>& undisturbed) {
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids, undisturbed);
}

}  // namespace runahead
