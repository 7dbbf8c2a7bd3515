// What strangers send costs a router and a worker no more memory than they are to take, and none for long.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "runahead/v1/member.grpc.pb.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "tests/integration/watched_process.h"
#include "tests/testing/frozen_thread.h"
#include "tests/testing/patience.h"
#include "tests/testing/raw_http2.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

using testing::kMiB;
using testing::RawHttp2;
using testing::WatchedProcess;

constexpr char kTokenize[] = "/runahead.v1.Inference/Tokenize";
constexpr char kGenerate[] = "/runahead.v1.Inference/Generate";
constexpr int64_t kBudget = 640 * kMiB;
constexpr int64_t kBeside = 64 * kMiB;  // connections, threads, and what malloc has not given back yet

std::string ModelFile(const SyntheticModel& model, const std::string& name) {
  const std::string path = absl::StrCat(::testing::TempDir(), "request-memory-", name, ".gguf");
  const absl::Status written = WriteSyntheticGguf(model, path);
  EXPECT_TRUE(written.ok()) << written;
  return path;
}

// A router whose only worker is never there. Its context takes texts of any length.
class RequestMemoryTest : public ::testing::Test {
 protected:
  static SyntheticModel Model() {
    SyntheticModel model;
    model.context_length = 1 << 26;
    return model;
  }
  std::unique_ptr<WatchedProcess> Router(const std::vector<std::string>& more = {}) const {
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
    auto router = std::make_unique<WatchedProcess>(args);
    // What it needs for its first calls is not their memory: libraries, threads.
    std::vector<std::thread> callers;
    for (int i = 0; i < 8; ++i) callers.emplace_back([&] { EXPECT_TRUE(Serves(*router)); });
    for (std::thread& caller : callers) caller.join();
    router->Begin();
    return router;
  }
  // That an honest client is served, meanwhile.
  static bool Serves(const WatchedProcess& router) {
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

// Each of a hundred calls of `method` brings half of a message; all end. Meanwhile honest clients are served.
void SendHalfMessages(RawHttp2& client, const std::string& method, const std::function<bool()>& serves) {
  std::vector<uint32_t> calls;
  for (int i = 0; i < 100; ++i) calls.push_back(client.Call(method));
  const std::string message = RawHttp2::Prefix(16 << 20) + std::string(16 << 20, 'a');
  std::thread attack([&] { SendAll(client, calls, message, 15 << 20, absl::Now() + testing::LongestWait()); });
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(serves());
  attack.join();
  EXPECT_EQ(client.ended(), 100u);
}

// Was: 1.6 GB, half of it for good.
TEST_F(RequestMemoryTest, AHundredMessagesThatStopHalfway) {
  const auto router = Router();
  {
    RawHttp2 client(router->address());
    testing::ChargeWatch charges(*router);
    SendHalfMessages(client, kTokenize, [&] { return Serves(*router); });
    EXPECT_GT(router->Refused("slow"), 0);
    charges.ExpectWithinLimits();
    router->ExpectPeakBelow(kBudget + kBeside);  // 280 MiB were seen: what nothing is charged for would be more
    router->ExpectBackSoon();
  }
  EXPECT_TRUE(Serves(*router));
  EXPECT_EQ(router->Metric("runahead_request_memory_bytes{kind=\"arriving\"}"), 0);
  EXPECT_TRUE(Eventually([&] { return router->Held() == 0; }));
}

// What gRPC and we take for a call before somebody has looked at it.
constexpr int64_t kUnseenCall = 11 << 10;

// Was: 577 MB, for as long as the client liked. What they take now is until somebody has looked at them. How many wait
// for that at once depends on the machine: where its cores are busy, all of them.
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
    static_assert(50'000 * kUnseenCall < kBudget + kBeside);  // that a router takes what it may, whatever comes
    router->ExpectPeakBelow(50'000 * kUnseenCall);
  }
  EXPECT_TRUE(Serves(*router));
  router->ExpectBackSoon();
}

// Was: 2.1 GB. A client that never says that it has heard how many calls it may have is not held to that by gRPC.
TEST_F(RequestMemoryTest, AConnectionThatHeedsNoLimitIsHungUpOn) {
  const auto router = Router();
  {
    RawHttp2 greedy(router->address());
    int calls = 0;
    while (calls < 300'000 && greedy.Call(kTokenize) != 0) ++calls;
    EXPECT_LT(calls, 300'000);
    EXPECT_TRUE(Serves(*router));
    router->ExpectPeakBelow(kBudget + kBeside);
  }
  router->ExpectBackSoon();
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
    testing::ChargeWatch charges(*router);
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
    charges.ExpectWithinLimits();
    router->ExpectPeakBelow(kBudget + kBeside);  // 280 MiB were seen: what nothing is charged for would be more
  }
  EXPECT_TRUE(Eventually([&] { return router->Held() == 0; }));
  router->ExpectBackSoon();
  EXPECT_TRUE(Serves(*router));
}

// 8 MB as four million empty messages, which take a hundred bytes each once they are parsed.
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

// Was: each kept its text, its ids and its answer for as long as the client liked: 590 MiB. Meanwhile there was no
// memory for long requests of others.
TEST_F(RequestMemoryTest, TwoHundredAnswersThatNobodyTakes) {
  const auto router = Router({"--min-arrival-rate", "256KiB"});
  v1::TokenizeRequest request;
  while (request.text().size() < (1 << 20)) request.mutable_text()->append("\xc3\xa9");  // four bytes of the answer
  const std::string text = request.SerializeAsString();
  const std::string message = RawHttp2::Prefix(static_cast<uint32_t>(text.size())) + text;
  const auto answers = [&] { return router->Metric("runahead_request_memory_bytes{kind=\"answers\"}"); };
  const auto cut_off = [&](const char* reason) {
    return router->Metric(absl::StrCat("runahead_answers_cut_off_total{reason=\"", reason, "\"}"));
  };
  {
    testing::ChargeWatch charges(*router);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        RawHttp2 client(router->address());  // it grants no more than the first 64 KiB
        std::vector<uint32_t> calls;
        for (int j = 0; j < 50; ++j) calls.push_back(client.Call(kTokenize));
        SendAll(client, calls, message, message.size(), absl::Now() + testing::Patience(absl::Seconds(90)));
        EXPECT_EQ(client.open(), 0u);
      });
    }
    EXPECT_TRUE(Eventually([&] { return answers() > 5 * kMiB && router->Held() == 0; })) << answers();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(Serves(*router));
    EXPECT_GT(answers(), 5 * kMiB) << "the attack had ended";
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(cut_off("slow"), 0);
    EXPECT_GT(cut_off("full"), 0);
    charges.ExpectWithinLimits();
    router->ExpectPeakBelow(kBudget / 2 + kBeside);  // likewise; 113 MiB were seen
  }
  EXPECT_TRUE(Eventually([&] { return answers() == 0; }));
  router->ExpectBackSoon();
}

// That anybody may call, on every port; the last one is nobody's.
constexpr const char* kOpenMethods[] = {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
                                        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                                        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                        "/no.Such/Method"};

double OpenRefused(const WatchedProcess& process) {
  double all = 0;
  for (const char* reason : {"slow", "full", "long"}) {
    all += process.Metric(absl::StrCat("runahead_open_messages_refused_total{reason=\"", reason, "\"}"));
  }
  return all;
}

// Was: 390 to 620 MB, for as long as the client liked.
TEST_F(RequestMemoryTest, MessagesThatStopHalfwayToMethodsThatAreOpenToAll) {
  for (const char* method : kOpenMethods) {
    SCOPED_TRACE(method);
    const auto router = Router();
    RawHttp2 client(router->address());
    SendHalfMessages(client, method, [&] { return Serves(*router); });
    // A method that there is not ends before anything of it is read.
    EXPECT_EQ(OpenRefused(*router) > 0, absl::string_view(method) != "/no.Such/Method");
    router->ExpectPeakBelow(kBeside);
    router->ExpectBackSoon();
    EXPECT_TRUE(Serves(*router));
  }
}

// Was: half of request_memory, at which gRPC ends calls of anybody.
TEST_F(RequestMemoryTest, MessagesOfAGigabyte) {
  std::vector<std::string> methods(std::begin(kOpenMethods), std::end(kOpenMethods));
  methods.insert(methods.end(), {kTokenize, kGenerate});
  const std::string piece(1 << 20, 'a');
  for (const std::string& method : methods) {
    SCOPED_TRACE(method);
    const auto router = Router();
    RawHttp2 client(router->address());
    const uint32_t call = client.Call(method);
    client.Send(call, RawHttp2::Prefix(1 << 30));
    int64_t sent = 0;
    while (sent < int64_t{1} << 30 && !client.Ended(call)) {
      sent += static_cast<int64_t>(client.Send(call, piece));
      if (!client.Pump(absl::ZeroDuration())) break;
    }
    EXPECT_TRUE(client.Ended(call));
    router->ExpectPeakBelow(4 * kBeside);
    router->ExpectBackSoon();
    EXPECT_TRUE(Serves(*router));
  }
}

// Sends `message` at `a_tick` bytes each tenth of a second. How much of it was sent when the call ended.
size_t SendSteadily(const WatchedProcess& router, const std::string& message, size_t a_tick) {
  RawHttp2 client(router.address());
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
}

// A megabyte a second where half of one is asked for, over more than the span that is judged; and a quarter.
TEST_F(RequestMemoryTest, ASlowMessageComesToItsEndUnlessItIsTooSlow) {
  const auto router = Router({"--min-arrival-rate", "512KiB"});
  const std::string message = RawHttp2::Prefix(15 << 20) + std::string(15 << 20, 'a');
  EXPECT_EQ(SendSteadily(*router, message, 100 << 10), message.size());
  EXPECT_EQ(router->Refused("slow"), 0);
  EXPECT_LT(SendSteadily(*router, message, 20 << 10), message.size());
  EXPECT_EQ(router->Refused("slow"), 1);
}

// Was: the slow one ended after 10 s, for it alone was read for so long.
TEST_F(RequestMemoryTest, ASlowMessageComesToItsEndBesideMessagesThatStopHalfway) {
  const auto router = Router({"--min-arrival-rate", "512KiB"});
  const std::string message = RawHttp2::Prefix(15 << 20) + std::string(15 << 20, 'a');
  std::atomic<bool> came = false;
  std::thread attack([&] {
    const std::string other = RawHttp2::Prefix(16 << 20) + std::string(16 << 20, 'b');
    while (!came) {
      RawHttp2 client(router->address());
      std::vector<uint32_t> calls;
      for (int i = 0; i < 100; ++i) calls.push_back(client.Call(kTokenize));
      SendAll(client, calls, other, 8 << 20, absl::Now() + absl::Seconds(3));
    }
  });
  EXPECT_EQ(SendSteadily(*router, message, 100 << 10), message.size());
  came = true;
  attack.join();
  EXPECT_GT(router->Refused("slow"), 0) << "the others";
}

// Was: sixteen such clients and nobody else. Each of thirty sends 200 kB a second.
TEST_F(RequestMemoryTest, SlowMessagesOfManyKeepNobodyOut) {
  const auto router = Router();
  const std::string message = RawHttp2::Prefix(15 << 20) + std::string(15 << 20, 'a');
  std::vector<std::unique_ptr<RawHttp2>> clients;
  std::vector<uint32_t> calls;
  for (int i = 0; i < 30; ++i) {
    clients.push_back(std::make_unique<RawHttp2>(router->address()));
    calls.push_back(clients.back()->Call(kTokenize));
  }
  std::atomic<bool> served = false;
  std::thread others([&] {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(Serves(*router));
    served = true;
  });
  std::vector<size_t> sent(clients.size());
  const absl::Time begin = absl::Now();
  for (absl::Time next = begin; !served || next < begin + absl::Seconds(3); next += absl::Milliseconds(100)) {
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i]->Pump(absl::ZeroDuration());
      sent[i] += clients[i]->Send(calls[i], absl::string_view(message).substr(sent[i], 20'000));
    }
    absl::SleepFor(next + absl::Milliseconds(100) - absl::Now());
  }
  others.join();
  for (size_t i = 0; i < clients.size(); ++i) EXPECT_FALSE(clients[i]->Ended(calls[i])) << "client " << i;
}

// That whoever asks for it is told of the worker's health.
bool SaysItsHealth(const WatchedProcess& worker) {
  const auto channel = grpc::CreateChannel(worker.address(), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = grpc::health::v1::Health::NewStub(channel)->Check(&context, {}, &response);
  return status.ok() && response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

// Was: 200 MB of a decode worker for calls that had no key, and 600 for those that need none.
TEST_F(RequestMemoryTest, AWorkerReadsNothingOfAStranger) {
  const std::string key = absl::StrCat(::testing::TempDir(), "/", getpid(), "-request-memory.key");
  std::ofstream(key) << "a key of this cluster\n";
  chmod(key.c_str(), 0600);
  SyntheticModel model;
  WatchedProcess worker({RUNAHEAD_WORKER, "--role", "decode", "--threads", "1", "--dtype", "f32", "--model",
                         ModelFile(model, "worker"), "--cluster-key", key, "--kv-memory", "16MiB"});
  std::vector<std::string> methods(std::begin(kOpenMethods), std::end(kOpenMethods));
  for (const auto* file : {v1::Capabilities::descriptor()->file(), v1::ProveRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      const auto& service = *file->service(i);
      for (int m = 0; m < service.method_count(); ++m) {
        methods.push_back(absl::StrCat("/", service.full_name(), "/", service.method(m)->name()));
      }
    }
  }
  EXPECT_GE(methods.size(), 11u);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(SaysItsHealth(worker));  // what it needs for its first calls is its own
  worker.Begin();
  std::vector<std::unique_ptr<RawHttp2>> clients;  // stay open
  for (const std::string& method : methods) {
    SCOPED_TRACE(method);
    clients.push_back(std::make_unique<RawHttp2>(worker.address()));
    SendHalfMessages(*clients.back(), method, [&] { return SaysItsHealth(worker); });
  }
  worker.ExpectPeakBelow(kBeside);
  worker.ExpectBackSoon();
  EXPECT_GT(OpenRefused(worker), 0);
  const auto threads = testing::ThreadsOf(worker.pid());
  const auto is_arrivals = [](const auto& thread) { return thread.second == "arrivals"; };
  EXPECT_EQ(std::count_if(threads.begin(), threads.end(), is_arrivals), 1)
      << "one for all of the port's methods that anybody may call";
}

}  // namespace
}  // namespace runahead
