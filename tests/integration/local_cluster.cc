#include "tests/integration/local_cluster.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"

namespace runahead {

namespace {

std::string FileText(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// 0 where there is no such process any more.
pid_t ParentOf(pid_t pid) {
  const std::string stat = FileText(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');
  pid_t parent = 0;
  if (name_end != std::string::npos) sscanf(stat.c_str() + name_end + 1, " %*c %d", &parent);
  return parent;
}

// "router", or what a worker is called; empty for other commands.
std::string NameOf(pid_t pid) {
  const std::vector<std::string> arguments =
      absl::StrSplit(FileText(absl::StrCat("/proc/", pid, "/cmdline")), '\0', absl::SkipEmpty());
  if (!arguments.empty() && absl::EndsWith(arguments[0], "runahead-router")) return "router";
  for (const std::string& argument : arguments) {
    if (absl::StartsWith(argument, "--name=")) return argument.substr(std::strlen("--name="));
  }
  return "";
}

}  // namespace

LocalCluster::LocalCluster(const std::string& model, const std::vector<std::string>& arguments,
                           const std::vector<std::string>& environment,
                           const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  static std::atomic<int> number = 0;  // clusters may begin in threads
  log_ = absl::StrCat(::testing::TempDir(), "/cluster-", getpid(), "-", number++, ".log");
  const std::string command = absl::StrCat("exec '", RUNAHEAD_BINARY, "' up --json --http off --model '", model, "' ",
                                           absl::StrJoin(arguments, " "), " 2>'", log_, "'");
  up_ = std::make_unique<testing::TestProcess>(std::vector<std::string>{"/bin/sh", "-c", command}, environment);
  RUNAHEAD_CHECK(up_->ReadOutUntil("\n"));
  const nlohmann::json ready = nlohmann::json::parse(up_->out());
  router_ = ready.at("router");
  for (const auto& [name, address] : ready.at("metrics").items()) metrics_.emplace_back(name, address);
  stub_ = v1::Inference::NewStub(grpc::CreateChannel(router_, credentials));
  grpc::ClientContext context;
  v1::ListModelsResponse models;
  RUNAHEAD_CHECK(stub_->ListModels(&context, {}, &models).ok() && models.models_size() == 1);
  model_name_ = models.models(0).name();
}

LocalCluster::~LocalCluster() {
  up_->Signal(SIGTERM);
  const int code = up_->Wait();
  EXPECT_EQ(code, 0);
  if (::testing::Test::HasFailure()) std::cerr << "---- " << log_ << "\n" << Log();
  std::remove(log_.c_str());
}

std::string LocalCluster::Log() const {
  return FileText(log_);
}

std::map<std::string, pid_t> LocalCluster::pids() const {
  std::map<std::string, pid_t> pids;
  DIR* const processes = opendir("/proc");
  while (const dirent* entry = readdir(processes)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid) || ParentOf(pid) != up_->pid()) continue;
    if (const std::string name = NameOf(pid); !name.empty()) pids[name] = pid;
  }
  closedir(processes);
  return pids;
}

pid_t LocalCluster::pid(const std::string& name) const {
  pid_t pid = 0;
  RUNAHEAD_CHECK(Eventually([&] {
    const std::map<std::string, pid_t> now = pids();
    const auto found = now.find(name);
    if (found != now.end()) pid = found->second;
    return found != now.end();
  }));
  return pid;  // never -1, which a signal would take for everybody
}

std::string LocalCluster::Metrics(const std::string& process) const {
  for (const auto& [name, address] : metrics_) {
    if (name != process) continue;
    httplib::Client client("http://" + address);
    const auto reply = client.Get("/metrics");
    return reply ? reply->body : "";
  }
  return "";
}

double LocalCluster::Metric(const std::string& process, const std::string& line) const {
  const std::string metrics = Metrics(process);
  for (const absl::string_view text : absl::StrSplit(metrics, '\n')) {
    double value = 0;
    if (absl::StartsWith(text, line + " ") && absl::SimpleAtod(text.substr(line.size() + 1), &value)) return value;
  }
  return -1;
}

double LocalCluster::Sum(const std::string& process, const std::string& beginning) const {
  const std::string metrics = Metrics(process);
  double sum = 0;
  for (const absl::string_view text : absl::StrSplit(metrics, '\n')) {
    double value = 0;
    if (absl::StartsWith(text, beginning) && absl::SimpleAtod(text.substr(text.rfind(' ') + 1), &value)) sum += value;
  }
  return sum;
}

double LocalCluster::Ended(const std::string& code) const {
  return Metric("router", absl::StrCat("runahead_requests_total{code=\"", code, "\",model=\"", model_name_, "\"}"));
}

Answer LocalCluster::Generate(const v1::GenerateRequest& request, grpc::ClientContext* context,
                              const std::function<void(size_t)>& on_token) {
  return GenerateOver(*stub_, request, context, on_token);
}

Answer LocalCluster::GenerateEventually(const v1::GenerateRequest& request) {
  Answer answer;
  Eventually([&] {
    answer = Generate(request);
    return answer.status.ok();
  });
  return answer;
}

void LocalCluster::ExpectAllFree() {
  constexpr absl::Duration kBeforeExpiry = absl::Seconds(15);
  for (const auto& [name, address] : metrics_) {
    const bool decode = absl::StartsWith(name, "decode"), prefill = absl::StartsWith(name, "prefill");
    if (!decode && !prefill) continue;
    const char* const held = decode ? "runahead_kv_leases" : "runahead_prefill_buffer_bytes";
    EXPECT_TRUE(Eventually([&, process = name] { return Metric(process, held) == 0; }, kBeforeExpiry)) << name;
    EXPECT_TRUE(!decode || Metric(name, "runahead_kv_leases_expired_total") == 0) << name;
  }
  EXPECT_TRUE(Eventually([&] { return Metric("router", "runahead_requests_in_flight") == 0; }, kBeforeExpiry));
}

Answer GenerateOver(v1::Inference::Stub& stub, const v1::GenerateRequest& request, grpc::ClientContext* context,
                    const std::function<void(size_t)>& on_token) {
  grpc::ClientContext own;
  own.set_deadline(absl::ToChronoTime(absl::Now() + testing::Patience(LocalCluster::kPatience)));
  if (context == nullptr) context = &own;
  context->set_wait_for_ready(true);
  Answer answer;
  const auto reader = stub.Generate(context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_started()) answer.started = response.started();
    if (response.has_finished()) {
      answer.finished = response.finished();
      answer.text += response.finished().text();
    }
    if (response.has_prompt_logprobs() && response.prompt_logprobs().index() > 0) {
      const v1::PromptLogprobs& scores = response.prompt_logprobs();
      EXPECT_EQ(scores.index(), static_cast<int>(answer.prompt_logprobs.size()) + 1);  // none lost, none repeated
      EXPECT_TRUE(answer.ids.empty()) << "scores come before all tokens";
      answer.prompt_logprobs.insert(answer.prompt_logprobs.end(), scores.logprobs().begin(), scores.logprobs().end());
    }
    if (!response.has_tokens()) continue;
    const int have = request.output_ids_size() + static_cast<int>(answer.ids.size());
    EXPECT_EQ(response.tokens().index(), have);  // none lost, none repeated
    answer.ids.insert(answer.ids.end(), response.tokens().ids().begin(), response.tokens().ids().end());
    answer.logprobs.insert(answer.logprobs.end(), response.tokens().logprobs().begin(),
                           response.tokens().logprobs().end());
    answer.text += response.tokens().text();
    if (on_token) on_token(answer.ids.size());
  }
  answer.status = reader->Finish();
  return answer;
}

bool Eventually(const std::function<bool()>& is_true, absl::Duration patience) {
  const absl::Time end = absl::Now() + patience;
  Mutex mu;
  CondVar never;
  for (absl::Duration pause = absl::Milliseconds(5); !is_true(); pause = std::min(2 * pause, absl::Milliseconds(200))) {
    if (absl::Now() > end) return false;
    MutexLock lock(mu);
    never.WaitFor(mu, pause);
  }
  return true;
}

v1::GenerateRequest RequestOf(const std::vector<int32_t>& ids, int max_tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

v1::GenerateRequest Uncached(v1::GenerateRequest request) {
  request.set_no_cache(true);
  return request;
}

std::vector<int32_t> SyntheticIds(int count, int seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = 3 + static_cast<int32_t>(random() % 300);
  return ids;
}

}  // namespace runahead
