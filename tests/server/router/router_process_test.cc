#include "server/router/router_process.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/base/address.h"
#include "server/base/descriptor.h"
#include "server/router/inference_service.h"
#include "server/rpc/transport_options.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

// Of a connection that comes to this process at the port.
int UserTimeoutMs(int port) {
  sockaddr_in to = {}, own = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  char settings;  // gRPC begins with them: then it has the connection
  EXPECT_EQ(recv(client.get(), &settings, 1, 0), 1);
  socklen_t size = sizeof(own);
  getsockname(client.get(), reinterpret_cast<sockaddr*>(&own), &size);
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in peer = {};
    size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.sin_port != own.sin_port) continue;
    int timeout_ms = -1;
    size = sizeof(timeout_ms);
    if (getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &size) == 0) return timeout_ms;
  }
  return -1;
}

TEST(RouterProcess, ClientsMayStandStillForLongerThanOurOwnProcesses) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/router_process_", getpid(), ".gguf");
  ASSERT_TRUE(WriteSyntheticGguf(SyntheticModel(), path).ok());
  RouterOptions options;
  options.model = path;
  options.workers = {{"both", "127.0.0.1:1"}};
  const auto router = RouterProcess::Start(options);
  std::filesystem::remove(path);
  ASSERT_TRUE(router.ok()) << router.status();
  EXPECT_EQ(UserTimeoutMs(ParseHostPort((*router)->address())->port), absl::ToInt64Milliseconds(absl::Minutes(4)));
  // Whoever takes nothing of its answer is ended by the router, which says why, long before the transport would do it.
  EXPECT_GT(kPublicKeepAlive.time, ServiceLimits().stall_timeout);
}

// A vocabulary of 320 tokens, the last 20 of which were added without rows in the model's table.
std::string WriteWithFewerRows() {
  const SyntheticVocabulary vocabulary = MakeSyntheticVocabulary(320);
  GgufBuilder file;
  file.AddString("general.architecture", "llama");
  file.AddUint32("llama.context_length", 64);
  file.AddString("tokenizer.ggml.model", "gpt2");
  file.AddString("tokenizer.ggml.pre", "smollm");
  file.AddStrings("tokenizer.ggml.tokens", vocabulary.tokens);
  file.AddInts("tokenizer.ggml.token_type", vocabulary.types);
  file.AddStrings("tokenizer.ggml.merges", vocabulary.merges);
  file.AddTensor("token_embd.weight", WeightType::kF32, {2, 300}, std::string(2 * 300 * sizeof(float), '\0'));
  std::string path = absl::StrCat(::testing::TempDir(), "/fewer_rows_", getpid(), ".gguf");
  EXPECT_TRUE(file.Write(path).ok());
  return path;
}

TEST(RouterProcess, RefusesTokensThatTheModelHasNoRowFor) {
  RouterOptions options;
  options.model = WriteWithFewerRows();
  options.workers = {{"both", "127.0.0.1:1"}};
  const auto router = RouterProcess::Start(options);
  std::filesystem::remove(options.model);
  ASSERT_TRUE(router.ok()) << router.status();
  const auto stub =
      v1::Inference::NewStub(grpc::CreateChannel((*router)->address(), grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(300);
  grpc::ClientContext context;
  v1::GenerateResponse response;
  const auto reader = stub->Generate(&context, request);
  EXPECT_FALSE(reader->Read(&response));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(status.error_message(), "token_ids.ids[0]: 300 is not in [0, 300)");
}

}  // namespace
}  // namespace runahead
