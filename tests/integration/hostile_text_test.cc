// Texts as large as a message may be, eight at once: the router says no before it works on them, and stays small.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using testing::StatusBytes;

constexpr int kAtOnce = 8;
constexpr size_t kTextBytes = (size_t{16} << 20) - 1024;  // leaves room for the rest of the message
constexpr int64_t kMostBytes = int64_t{300} << 20;

class HostileTextTest : public ::testing::Test {
 protected:
  HostileTextTest()
      : cluster_(WriteSynthetic(SyntheticModel(), "hostile-text"),
                 {"--prefill", "1", "--decode", "1", "--dtype", "f32"}),
        idle_(StatusBytes(cluster_.pid("router"), "VmRSS")) {}

  // What the router takes above what it took when it was new, at the most, while `call` runs on so many threads.
  int64_t Peak(const std::function<void(v1::Inference::Stub&)>& call) {
    const pid_t router = cluster_.pid("router");
    std::ofstream(absl::StrCat("/proc/", router, "/clear_refs")) << 5;  // VmHWM begins anew
    std::vector<std::thread> callers;
    for (int i = 0; i < kAtOnce; ++i) {
      callers.emplace_back([&] {
        const auto channel = grpc::CreateCustomChannel(cluster_.router(), grpc::InsecureChannelCredentials(), Own());
        call(*v1::Inference::NewStub(channel));
      });
    }
    for (std::thread& caller : callers) caller.join();
    return StatusBytes(router, "VmHWM") - idle_;
  }
  // A connection of its own for each.
  static grpc::ChannelArguments Own() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return arguments;
  }
  // How Generate refuses a prompt, eight times at once. Those that are large once they are parsed wait for no room.
  void ExpectRefused(const char* what, const v1::GenerateRequest& request, bool large_once_parsed = false) {
    std::atomic<int> looked_at = 0;
    const int64_t peak = Peak([&](v1::Inference::Stub& stub) {
      grpc::ClientContext context;
      const auto reader = stub.Generate(&context, request);
      v1::GenerateResponse response;
      while (reader->Read(&response)) ADD_FAILURE();
      const grpc::Status status = reader->Finish();
      if (large_once_parsed && absl::StrContains(status.error_message(), "request_memory")) {
        EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << what << ": " << status.error_message();
        return;
      }
      ++looked_at;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE) << what << ": " << status.error_message();
      EXPECT_TRUE(absl::StartsWith(status.error_message(), "prompt:")) << status.error_message();
    });
    EXPECT_GE(looked_at, large_once_parsed ? 1 : kAtOnce);
    Judge(what, peak, large_once_parsed ? 2 * kMostBytes : kMostBytes);
  }
  void Judge(const std::string& what, int64_t peak, int64_t most_bytes = kMostBytes) {
    std::cerr << what << ": " << (peak >> 20) << " MiB above idle\n";
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(peak, most_bytes) << what;
#endif
  }

  LocalCluster cluster_;
  const int64_t idle_;
};

// One word, many words, and blanks are hard for different reasons.
std::vector<std::string> Texts(size_t bytes) {
  std::string words;
  while (words.size() < bytes) absl::StrAppend(&words, "a", words.size() % 7, " ");
  words.resize(bytes);
  return {std::string(bytes, 'a'), words, std::string(bytes, ' ')};
}

TEST_F(HostileTextTest, EightAtOnceAreRefusedInLittleMemory) {
  for (const std::string& text : Texts(kTextBytes)) {
    const int64_t peak = Peak([&](v1::Inference::Stub& stub) {
      grpc::ClientContext context;
      v1::TokenizeRequest request;
      request.set_text(text);
      v1::TokenizeResponse response;
      const grpc::Status status = stub.Tokenize(&context, request, &response);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
      EXPECT_TRUE(absl::StartsWith(status.error_message(), "text:")) << status.error_message();
    });
    Judge("Tokenize", peak);
    v1::GenerateRequest request;
    request.set_prompt(text);
    ExpectRefused("Generate of a prompt", request);
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content(text);
    ExpectRefused("Generate of a chat", request);
  }
  v1::GenerateRequest ids;
  // A byte of the message is four once it is parsed, and that was done before anybody can say no.
  ids.mutable_token_ids()->mutable_ids()->Resize(static_cast<int>(kTextBytes), 3);
  ExpectRefused("Generate of token ids", ids, true);
}

// What is small on the wire and large once it is parsed, or rendered, in other places than the text.
TEST_F(HostileTextTest, EightChatsOfManyMessagesAreRefusedBeforeTheyAreWorkedOn) {
  v1::GenerateRequest chat;
  for (int i = 0; i < 1'600'000; ++i) chat.mutable_chat()->add_messages()->set_role("user");
  // Parsed, which was done before anybody can say no, an empty message takes some 100 bytes.
  ExpectRefused("Generate of a chat of many messages", chat, true);
}

// The longest text that Tokenize takes, as one word, which is what takes most memory. They have their turns.
TEST_F(HostileTextTest, EightAtOnceAreTokenizedInLittleMemory) {
  const int64_t peak = Peak([&](v1::Inference::Stub& stub) {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_text(std::string(size_t{4} << 20, ' '));
    v1::TokenizeResponse response;
    const grpc::Status status = stub.Tokenize(&context, request, &response);
    // Its answer may be larger than these clients, which have gRPC's own limits, would take: that is said.
    const bool told = status.error_code() == grpc::StatusCode::INVALID_ARGUMENT &&
                      absl::StrContains(status.error_message(), "make an answer of");
    EXPECT_TRUE(status.ok() || told) << status.error_message();
  });
  Judge("Tokenize of the longest text", peak, kMostBytes * 3 / 2);
}

}  // namespace
}  // namespace runahead
