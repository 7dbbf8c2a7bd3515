// Ports that more connect to than the process has descriptors for, with real processes at a hard limit of 256.
#include "tests/testing/crowd.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "server/base/descriptor.h"
#include "server/base/listening_sockets.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using testing::Crowd;
using ::testing::HasSubstr;
using testing::MetricOf;
using testing::ServingProcess;
using testing::StandingCrowd;

constexpr char kReadyPrefill[] = "runahead_workers{role=\"prefill\",state=\"ready\"}";
constexpr int kLimit = 256;
constexpr int kCrowd = 1300;

std::vector<std::string> AtTheLimit(const std::vector<std::string>& args) {
  std::vector<std::string> limited = {"/bin/sh", "-c", absl::StrCat("ulimit -n ", kLimit, "; exec \"$@\""), "sh"};
  limited.insert(limited.end(), args.begin(), args.end());
  return limited;
}

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own, as another client's
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// 2 s is what is promised to who comes after a crowd.
void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
}

// What /healthz says; empty where nothing came.
std::string Health(const std::string& metrics) {
  httplib::Client client("http://" + metrics);
  client.set_read_timeout(5);
  const auto page = client.Get("/healthz");
  return page ? absl::StrCat(page->status, " ", page->body) : "";
}

int OpenDescriptors(const ServingProcess& process) {
  int open = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", process.process.pid(), "/fd"))) {
    ++open;
  }
  return open;
}

class CrowdTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Three crowds, and ours.
    if (testing::RaiseOwnLimit() < 3 * kCrowd + 2048) GTEST_SKIP() << "it needs more descriptors (ulimit -Hn)";
  }
  std::unique_ptr<ServingProcess> Router(const std::vector<std::string>& arguments) {
    std::vector<std::string> args = {RUNAHEAD_ROUTER, "--model", model_};
    args.insert(args.end(), arguments.begin(), arguments.end());
    return std::make_unique<ServingProcess>(AtTheLimit(args));
  }
  std::unique_ptr<ServingProcess> Worker(const std::string& role, const std::string& name) {
    auto worker =
        std::make_unique<ServingProcess>(AtTheLimit({RUNAHEAD_WORKER, "--role", role, "--name", name, "--dtype", "f32",
                                                     "--threads", "1", "--model", model_, "--kv-memory", "64MiB"}));
    EXPECT_FALSE(worker->address.empty()) << worker->process.err();
    return worker;
  }

  const std::string model_ = WriteSynthetic(SyntheticModel(), "crowd");
};

std::string LinkAddressOf(const ServingProcess& worker) {
  const auto stub = v1::Worker::NewStub(NewChannel(worker.address));
  grpc::ClientContext context;
  v1::Capabilities capabilities;
  EXPECT_TRUE(stub->GetCapabilities(&context, {}, &capabilities).ok());
  return capabilities.link_address();
}

// All ports of one process at once: it goes on saying that it lives, and forgets the crowd when that is gone.
void Crowded(const ServingProcess& process, std::vector<std::string> ports, const std::function<void()>& meanwhile) {
  ports.insert(ports.end(), {process.address, process.metrics});
  const int before = OpenDescriptors(process);
  {
    std::vector<std::unique_ptr<Crowd>> crowds;
    for (const std::string& port : ports) crowds.push_back(std::make_unique<Crowd>(port, kCrowd));
    EXPECT_TRUE(Eventually([&] {
      return MetricOf(process.metrics, "runahead_connections_refused_total{port=\"grpc\",reason=\"limit\"}") +
                 MetricOf(process.metrics, "runahead_connections_refused_total{port=\"grpc\",reason=\"address\"}") +
                 MetricOf(process.metrics, "runahead_connections_refused_total{port=\"grpc\",reason=\"descriptors\"}") >
             kCrowd / 2;
    }));
    EXPECT_EQ(Health(process.metrics), "200 ok\n");
    EXPECT_LT(OpenDescriptors(process), kLimit - 16) << "none is left for what the process itself opens";
    if (meanwhile) meanwhile();
  }
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors(process) <= before + 16; })) << OpenDescriptors(process);
}

TEST_F(CrowdTest, NobodyIsDeafAfterACrowd) {
  const auto first = Worker("prefill", "prefill-0"), second = Worker("prefill", "prefill-1");
  const auto decode = Worker("decode", "decode-0");
  // Before there is a router: all links are made afterwards.
  for (const ServingProcess* worker : {first.get(), decode.get()}) {
    Crowded(*worker, {LinkAddressOf(*worker)}, nullptr);
    const auto stub = v1::Worker::NewStub(NewChannel(worker->address));
    grpc::ClientContext context;
    SetDeadline(context);
    v1::Capabilities capabilities;
    const grpc::Status status = stub->GetCapabilities(&context, {}, &capabilities);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  const auto router = Router({"--schedule", "kvr-even", absl::StrCat("--workers=role=prefill,address=", first->address),
                              absl::StrCat("--workers=role=prefill,address=", second->address),
                              absl::StrCat("--workers=role=decode,address=", decode->address)});
  ASSERT_FALSE(router->address.empty()) << router->process.err();
  const auto known = v1::Inference::NewStub(NewChannel(router->address));
  const auto request = Uncached(RequestOf(SyntheticIds(40, 1), 4));
  ASSERT_TRUE(Eventually([&] { return GenerateOver(*known, request).status.ok(); }));
  Crowded(*router, {}, [&] {
    const Answer answer = GenerateOver(*known, request);
    EXPECT_TRUE(answer.status.ok()) << "who was there before the crowd: " << answer.status.error_message();
  });
  // At the first try.
  grpc::ClientContext context;
  SetDeadline(context);
  const Answer answer = GenerateOver(*v1::Inference::NewStub(NewChannel(router->address)), request, &context);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  for (const ServingProcess* process : {first.get(), second.get(), decode.get(), router.get()}) {
    EXPECT_EQ(Health(process->metrics), "200 ok\n");
  }
  router->process.Signal(SIGTERM);
  EXPECT_EQ(router->process.Wait(), 0);
  EXPECT_THAT(router->process.err(), HasSubstr("connections are closed as they come"));
}

// More strangers than a link's port has places for, who say nothing, stay, and come back when they are closed.
TEST_F(CrowdTest, LinksAreMadeThoughSilentStrangersStayAtTheirPorts) {
  constexpr int kStrangers = 200;
  const auto first = Worker("prefill", "prefill-0"), second = Worker("prefill", "prefill-1");
  const auto decode = Worker("decode", "decode-0");
  std::vector<std::unique_ptr<StandingCrowd>> crowds;
  for (const ServingProcess* worker : {first.get(), second.get(), decode.get()}) {
    crowds.push_back(std::make_unique<StandingCrowd>(LinkAddressOf(*worker), kStrangers));
  }
  auto request = Uncached(RequestOf(SyntheticIds(40, 1), 4));
  request.mutable_experiment()->set_width(2);
  const auto router = Router({"--experiments", "--schedule", "kvr-even",
                              absl::StrCat("--workers=role=prefill,address=", first->address),
                              absl::StrCat("--workers=role=prefill,address=", second->address),
                              absl::StrCat("--workers=role=decode,address=", decode->address)});
  ASSERT_FALSE(router->address.empty()) << router->process.err();
  ASSERT_TRUE(Eventually([&] { return MetricOf(router->metrics, kReadyPrefill) == 2; }));
  const Answer answer = GenerateOver(*v1::Inference::NewStub(NewChannel(router->address)), request);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.started.plan().workers_size(), 2);
  EXPECT_EQ(answer.finished.failovers(), 0);
  for (const ServingProcess* worker : {first.get(), second.get(), decode.get()}) {
    EXPECT_EQ(Health(worker->metrics), "200 ok\n");
  }
}

// Of a process at its port, the socket that listens there. Not valid where the system does not give it away.
Descriptor ListeningSocketOf(const ServingProcess& process) {
  const Descriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, process.process.pid(), 0)));
  for (int fd = 3; fd < kLimit; ++fd) {
    Descriptor socket(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd.get(), fd, 0)));
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (!socket.valid() || getsockopt(socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0) continue;
    const SocketAddress own = OwnAddress(socket);
    if (listens != 0 && absl::StrCat(NumericHost(*own.get()), ":", PortOf(own.storage)) == process.address) {
      return socket;
    }
  }
  return {};
}

TEST_F(CrowdTest, AProcessWhoseOwnPortIsDeafSaysSoAndEnds) {
  const auto router = Router({"--port-patience", "3s", "--workers=role=prefill,address=127.0.0.1:1",
                              "--workers=role=decode,address=127.0.0.1:2"});
  ASSERT_FALSE(router->address.empty()) << router->process.err();
  EXPECT_EQ(Health(router->metrics), "200 ok\n") << "that no worker is there is not this process's fault";
  const Descriptor socket = ListeningSocketOf(*router);
  if (!socket.valid()) GTEST_SKIP() << "a process may not have the sockets of another here";
  ASSERT_EQ(shutdown(socket.get(), SHUT_RDWR), 0);
  std::string health;
  EXPECT_TRUE(Eventually([&] { return absl::StartsWith(health = Health(router->metrics), "503 "); })) << health;
  EXPECT_THAT(health, HasSubstr("this process's own port has not answered it for "));
  EXPECT_EQ(router->process.Wait(), 1);
  EXPECT_THAT(router->process.err(), HasSubstr("ends: this process's own port has not answered it for "));
}

TEST_F(CrowdTest, TricklingRequestsKeepNoProbeWaiting) {
  const auto router =
      Router({"--workers=role=prefill,address=127.0.0.1:1", "--workers=role=decode,address=127.0.0.1:2"});
  ASSERT_FALSE(router->address.empty()) << router->process.err();
  const Crowd crowd(router->metrics, 200);
  crowd.Say("GET /metrics HTTP/1.1\r\nX: ");
  for (int i = 0; i < 20; ++i) {
    crowd.Say("x");
    EXPECT_EQ(Health(router->metrics), "200 ok\n");
  }
  EXPECT_TRUE(Eventually([&] {
    crowd.Say("x");
    return crowd.Open() == 0;
  })) << crowd.Open()
      << " may go on for ever";
}

// Threads that do the same over and over, until the end.
class Rush {
 public:
  Rush(int threads, const std::function<void()>& act) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([act](const std::stop_token& stop) {
        while (!stop.stop_requested()) act();
      });
    }
  }

 private:
  std::vector<std::jthread> threads_;
};

TEST_F(CrowdTest, ScrapesKeepNoProbeWaiting) {
  const auto router =
      Router({"--workers=role=prefill,address=127.0.0.1:1", "--workers=role=decode,address=127.0.0.1:2"});
  ASSERT_FALSE(router->address.empty()) << router->process.err();
  const Rush rush(/*threads=*/12, [&] { httplib::Client("http://" + router->metrics).Get("/metrics"); });
  // More than one address may have at this limit of descriptors.
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Health(router->metrics), "200 ok\n");
}

// Processes that connect and close, over and over, until the end: threads of one process wait for each other.
class ConnectingProcesses {
 public:
  ConnectingProcesses(int count, const SocketAddress& to) {
    for (int i = 0; i < count; ++i) {
      const pid_t pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) ConnectAndClose(to);
      }
      pids_.push_back(pid);
    }
  }
  ~ConnectingProcesses() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  }

 private:
  // Its port is free again at once.
  static void ConnectAndClose(const SocketAddress& to) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const linger reset{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    (void)connect(fd, to.get(), to.length);
    close(fd);
  }

  std::vector<pid_t> pids_;
};

// Overload touches readiness only, for longer than deafness is borne.
TEST_F(CrowdTest, WhoConnectsAndClosesMakesNoPortDeaf) {
  const auto router = Router({"--port-patience", "1s", "--workers=role=prefill,address=127.0.0.1:1",
                              "--workers=role=decode,address=127.0.0.1:2"});
  ASSERT_FALSE(router->address.empty()) << router->process.err();
  const SocketAddress to = *NumericSocketAddress(*ParseHostPort(router->address));
  {
    const ConnectingProcesses crowd(/*count=*/8, to);
    const absl::Time until = absl::Now() + absl::Seconds(12);
    while (absl::Now() < until) ASSERT_EQ(Health(router->metrics), "200 ok\n");
  }
  router->process.Signal(SIGTERM);
  EXPECT_EQ(router->process.Wait(), 0) << router->process.err();
}

}  // namespace
}  // namespace runahead
