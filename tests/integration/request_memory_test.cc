// What strangers send costs a router and a worker no more memory than they are to take, and none for long.
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/raw_http2.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

using testing::RawHttp2;
using testing::ServingProcess;

constexpr char kTokenize[] = "/runahead.v1.Inference/Tokenize";
constexpr char kGenerate[] = "/runahead.v1.Inference/Generate";
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kBudget = 640 * kMiB;
constexpr int64_t kBeside = 64 * kMiB;  // connections, threads, and what malloc has not given back yet
constexpr int64_t kNoise = 24 * kMiB;   // threads that gRPC has started to keep up, and pages of which a part is in use
// What is freed is given back within this time, and silent calls have ended long before.
constexpr absl::Duration kSoon = absl::Seconds(30);

std::string ModelFile(const SyntheticModel& model, const std::string& name) {
  const std::string path = absl::StrCat(::testing::TempDir(), "request-memory-", name, ".gguf");
  const absl::Status written = WriteSyntheticGguf(model, path);
  EXPECT_TRUE(written.ok()) << written;
  return path;
}

// A process whose memory is watched.
class Watched {
 public:
  explicit Watched(std::vector<std::string> args) : process_(std::move(args)) {
    EXPECT_FALSE(process_.address.empty()) << process_.process.err();
    Begin();
  }
  const std::string& address() const { return process_.address; }

  // What it takes now is its start; from now on the peak counts.
  void Begin() {
    start_ = Status("VmRSS");
    std::ofstream(absl::StrCat("/proc/", process_.process.pid(), "/clear_refs")) << 5;
  }
  void ExpectPeakBelow(int64_t bytes) {
    const int64_t peak = Status("VmHWM") - start_;
    std::cerr << peak / kMiB << " MiB above the start at the most\n";
    if (testing::kSanitized) return;
    EXPECT_LT(peak, bytes);
  }
  void ExpectBackSoon(int64_t noise = kNoise) {
    if (testing::kSanitized) return;
    const bool back = Eventually([&] { return Status("VmRSS") < start_ + start_ / 10 + noise; }, kSoon);
    EXPECT_TRUE(back) << Status("VmRSS") / kMiB << " MiB, " << start_ / kMiB << " at the start";
  }
  double Metric(const std::string& series) const {
    const auto reply = httplib::Client("http://" + process_.metrics).Get("/metrics");
    for (const absl::string_view line : absl::StrSplit(reply ? reply->body : "", '\n')) {
      double value = 0;
      if (absl::StartsWith(line, series + " ") && absl::SimpleAtod(line.substr(series.size() + 1), &value))
        return value;
    }
    return -1;
  }
  double Held() const { return Metric("runahead_request_memory_bytes{kind=\"held\"}"); }
  double Refused(const std::string& reason) const {
    return Metric(absl::StrCat("runahead_messages_refused_total{reason=\"", reason, "\"}"));
  }

 private:
  int64_t Status(const std::string& name) const {
    std::ifstream in(absl::StrCat("/proc/", process_.process.pid(), "/status"));
    for (std::string line; std::getline(in, line);) {
      int64_t kib = 0;
      absl::string_view value = line;
      if (absl::ConsumePrefix(&value, name + ":") && absl::ConsumeSuffix(&value, " kB") &&
          absl::SimpleAtoi(value, &kib)) {
        return kib << 10;
      }
    }
    ADD_FAILURE() << "no " << name << ": the process is gone: " << process_.process.err();
    return 0;
  }

  ServingProcess process_;
  int64_t start_ = 0;
};

// A router whose only worker is never there. Its context takes texts of any length.
class RequestMemoryTest : public ::testing::Test {
 protected:
  static SyntheticModel Model() {
    SyntheticModel model;
    model.context_length = 1 << 26;
    return model;
  }
  std::unique_ptr<Watched> Router(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args = {RUNAHEAD_ROUTER,
                                     "--model",
                                     model_,
                                     "--workers",
                                     "role=both,address=127.0.0.1:1",
                                     "--log-level",
                                     "error",
                                     "--request-memory",
                                     absl::StrCat(kBudget)};
    args.insert(args.end(), more.begin(), more.end());
    auto router = std::make_unique<Watched>(args);
    // What it needs for its first calls is not their memory: libraries, threads.
    std::vector<std::thread> callers;
    for (int i = 0; i < 8; ++i) callers.emplace_back([&] { EXPECT_TRUE(Serves(*router)); });
    for (std::thread& caller : callers) caller.join();
    router->Begin();
    return router;
  }
  // That an honest client is served, meanwhile.
  static bool Serves(const Watched& router) {
    const auto stub = v1::Inference::NewStub(grpc::CreateChannel(router.address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::TokenizeRequest request;
    request.set_text("a word");
    v1::TokenizeResponse response;
    const grpc::Status status = stub->Tokenize(&context, request, &response);
    if (!status.ok()) std::cerr << status.error_message() << "\n";
    return status.ok();
  }

  const std::string model_ = ModelFile(Model(), "router");
};

// Sends of each call's `message` the first `most` bytes, as the server lets it, until all have ended or `until` passed.
void SendAll(RawHttp2& client, const std::vector<uint32_t>& calls, const std::string& message, size_t most,
             absl::Time until) {
  std::vector<size_t> sent(calls.size());
  while (absl::Now() < until && client.open() > 0) {
    for (size_t i = 0; i < calls.size(); ++i) {
      sent[i] += client.Send(calls[i], absl::string_view(message).substr(sent[i], most - sent[i]));
    }
    if (!client.Pump(absl::Milliseconds(5))) return;
  }
}

// Was: 1.6 GB, half of it for good.
TEST_F(RequestMemoryTest, AHundredMessagesThatStopHalfway) {
  const auto router = Router();
  {
    RawHttp2 client(router->address());
    std::vector<uint32_t> calls;
    for (int i = 0; i < 100; ++i) calls.push_back(client.Call(kTokenize));
    const std::string message = RawHttp2::Prefix(16 << 20) + std::string(16 << 20, 'a');
    std::thread attack([&] { SendAll(client, calls, message, 15 << 20, absl::Now() + absl::Seconds(60)); });
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(Serves(*router));
    attack.join();
    EXPECT_EQ(client.ended(), 100u);
    EXPECT_GT(router->Refused("slow"), 0);
    router->ExpectPeakBelow(kBudget + kBeside);
    router->ExpectBackSoon();
  }
  EXPECT_TRUE(Serves(*router));
  EXPECT_EQ(router->Metric("runahead_request_memory_bytes{kind=\"arriving\"}"), 0);
  EXPECT_TRUE(Eventually([&] { return router->Held() == 0; }));
}

// Was: 577 MB, for as long as the client liked. What they take
// now is until somebody has looked at them.
TEST_F(RequestMemoryTest, FiftyThousandCallsWithoutAMessage) {
  const auto router = Router();
  {
    RawHttp2 greedy(router->address());
    greedy.Pump(absl::Seconds(1));  // it has heard, and said that it has heard, how many calls it may have
    EXPECT_EQ(greedy.max_streams(), 1024u);
    for (int i = 0; i < 2000; ++i) greedy.Call(kTokenize);
    while (greedy.Pump(absl::Seconds(1)) && greedy.open() > 0) {
    }
    EXPECT_FALSE(greedy.Pump(absl::Seconds(1))) << "it has more calls than a connection may";
    std::vector<std::unique_ptr<RawHttp2>> clients;
    for (int i = 0; i < 50; ++i) {
      clients.push_back(std::make_unique<RawHttp2>(router->address()));
      for (int j = 0; j < 1000; ++j) clients.back()->Call(kTokenize);
    }
    EXPECT_TRUE(Serves(*router));
    EXPECT_TRUE(Eventually([&] {
      size_t open = 0;
      for (const auto& client : clients) {
        client->Pump(absl::ZeroDuration());
        open += client->open();
      }
      return open == 0;
    }));
    EXPECT_GT(router->Refused("full"), 0);
    router->ExpectPeakBelow(kBudget + kBeside);
  }
  EXPECT_TRUE(Serves(*router));
  // gRPC's own lists stay as long as they were: 32 to 70 MiB, the longer the slower the machine took the calls up.
  router->ExpectBackSoon(4 * kNoise);
}

// A message of GenerateRequest's field chat (3) with one message (1) of that role (1) and content (2).
std::string ChatOfText(size_t bytes) {
  v1::GenerateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  std::string text;
  while (text.size() < bytes) absl::StrAppend(&text, "word", text.size() % 89, " ");
  text.resize(bytes);
  message.set_content(std::move(text));
  return request.SerializeAsString();
}

// Was: 2.85 GB.
TEST_F(RequestMemoryTest, ManyLongChatsAtOnce) {
  const auto router = Router({"--queue-size", "1000", "--max-sessions", "127"});
  {
    const std::string chat = ChatOfText((8 << 20) - 1000);
    const std::string message = RawHttp2::Prefix(static_cast<uint32_t>(chat.size())) + chat;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        RawHttp2 client(router->address());
        std::vector<uint32_t> calls;
        for (int j = 0; j < 16; ++j) calls.push_back(client.Call(kGenerate));
        SendAll(client, calls, message, message.size(), absl::Now() + absl::Seconds(20));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(router->Refused("memory"), 0);
    router->ExpectPeakBelow(kBudget + kBeside);
  }
  EXPECT_TRUE(Eventually([&] { return router->Held() == 0; }));
  router->ExpectBackSoon();
  EXPECT_TRUE(Serves(*router));
}

// 16 MB as eight million empty messages, which take a hundred bytes each once they are parsed.
TEST_F(RequestMemoryTest, AMessageThatIsLargeOnceItIsParsed) {
  const auto router = Router();
  v1::GenerateRequest request;
  for (int i = 0; i < 4'000'000; ++i) request.mutable_chat()->add_messages();
  const auto stub = v1::Inference::NewStub(grpc::CreateChannel(router->address(), grpc::InsecureChannelCredentials()));
  for (int i = 0; i < 3; ++i) {
    const Answer answer = GenerateOver(*stub, request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << answer.status.error_message();
    EXPECT_TRUE(absl::StrContains(answer.status.error_message(), "request_memory"));
  }
  router->ExpectPeakBelow(kBeside + 3 * 16 * kMiB);
  router->ExpectBackSoon();
}

// A megabyte a second where half of one is asked for, over more than the span that is judged; and a quarter.
TEST_F(RequestMemoryTest, ASlowMessageComesToItsEndUnlessItIsTooSlow) {
  const auto router = Router({"--min-arrival-rate", "512KiB"});
  const std::string message = RawHttp2::Prefix(15 << 20) + std::string(15 << 20, 'a');
  const auto send = [&](size_t a_tick) {
    RawHttp2 client(router->address());
    const uint32_t call = client.Call(kTokenize);
    size_t due = 0, sent = 0;
    for (absl::Time next = absl::Now(); sent < message.size() && !client.Ended(call); next += absl::Milliseconds(100)) {
      due = std::min(message.size(), due + a_tick);
      while (sent < due && client.Pump(absl::Milliseconds(1)) && !client.Ended(call)) {
        sent += client.Send(call, absl::string_view(message).substr(sent, due - sent));
      }
      absl::SleepFor(next + absl::Milliseconds(100) - absl::Now());
    }
    while (!client.Ended(call) && client.Pump(absl::Seconds(1))) {
    }
    return sent;
  };
  EXPECT_EQ(send(100 << 10), message.size());
  EXPECT_EQ(router->Refused("slow"), 0);
  EXPECT_LT(send(20 << 10), message.size());
  EXPECT_EQ(router->Refused("slow"), 1);
}

// Was: 200 MB of a decode worker for calls that had no key.
TEST_F(RequestMemoryTest, AWorkerReadsNothingOfAStranger) {
  const std::string key = absl::StrCat(::testing::TempDir(), "/", getpid(), "-request-memory.key");
  std::ofstream(key) << "a key of this cluster\n";
  chmod(key.c_str(), 0600);
  SyntheticModel model;
  Watched worker({RUNAHEAD_WORKER, "--role", "decode", "--threads", "1", "--dtype", "f32", "--model",
                  ModelFile(model, "worker"), "--cluster-key", key, "--kv-memory", "16MiB"});
  {
    RawHttp2 client(worker.address());
    const std::string message = RawHttp2::Prefix(16 << 20) + std::string(16 << 20, 'a');
    std::vector<uint32_t> calls;
    for (const char* method : {"Decode/Generate", "Decode/Reserve", "Decode/Renew", "Worker/GetCapabilities"}) {
      for (int i = 0; i < 8; ++i) calls.push_back(client.Call(absl::StrCat("/runahead.v1.", method)));
    }
    SendAll(client, calls, message, message.size(), absl::Now() + absl::Seconds(30));
    EXPECT_EQ(client.open(), 0u);
  }
  worker.ExpectPeakBelow(kBeside);
}

}  // namespace
}  // namespace runahead
