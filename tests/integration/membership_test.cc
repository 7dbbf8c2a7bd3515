// Workers that come and go by the names of a service, and workers that drain: with real processes.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/name_server.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ServingProcess;
using ::testing::SizeIs;

constexpr char kPrefill[] = "_worker._tcp.prefill.example.test";
constexpr char kDecode[] = "_worker._tcp.decode.example.test";
constexpr int kPrompt = 2000;

class MembershipTest : public ::testing::Test {
 protected:
  // The chain's links are slow: a long prompt takes some seconds on more than one worker.
  std::unique_ptr<ServingProcess> Worker(const std::string& role, const std::string& name,
                                         const std::string& model = "") {
    auto worker = std::make_unique<ServingProcess>(std::vector<std::string>{
        RUNAHEAD_WORKER, "--role", role, "--name", name, "--dtype", "f32", "--threads", "1", "--model",
        model.empty() ? model_ : model, "--kv-memory", "64MiB", "--chain-link-gbps", "0.003"});
    EXPECT_FALSE(worker->address.empty()) << worker->process.err();
    return worker;
  }
  void StartRouter() {
    router_ = std::make_unique<ServingProcess>(
        std::vector<std::string>{RUNAHEAD_ROUTER, "--model", model_, "--schedule", "kvr-even", "--experiments",
                                 absl::StrCat("--workers=role=prefill,service=", kPrefill),
                                 absl::StrCat("--workers=role=decode,service=", kDecode), "--dns-server",
                                 names_.address(), "--dns-period", "100ms"});
    ASSERT_FALSE(router_->address.empty()) << router_->process.err();
    stub_ = v1::Inference::NewStub(grpc::CreateChannel(router_->address, grpc::InsecureChannelCredentials()));
  }
  // What the router says of its model; nothing where it does not answer.
  v1::Model Models() {
    grpc::ClientContext context;
    v1::ListModelsResponse models;
    return stub_->ListModels(&context, {}, &models).ok() ? models.models(0) : v1::Model();
  }
  bool PoolBecomes(int prefill, int decode) {
    return Eventually([&] {
      const v1::Model model = Models();
      return model.prefill_workers() == prefill && model.decode_workers() == decode;
    });
  }
  // How many of a role the router counts in a state; -1 where it does not say.
  int Workers(const std::string& role, const std::string& state) {
    httplib::Client client("http://" + router_->metrics);
    const auto page = client.Get("/metrics");
    const std::string name = absl::StrCat("runahead_workers{role=\"", role, "\",state=\"", state, "\"} ");
    const size_t at = page ? page->body.find(name) : std::string::npos;
    return at == std::string::npos ? -1 : std::atoi(page->body.c_str() + at + name.size());
  }
  // On the whole line: behind what is known there is no chain.
  Answer Ask(int max_tokens) { return GenerateOver(*stub_, Uncached(RequestOf(SyntheticIds(kPrompt, 1), max_tokens))); }
  Answer AskAsUser(int max_tokens) { return GenerateOver(*stub_, RequestOf(SyntheticIds(kPrompt, 1), max_tokens)); }
  // Reads until the chain has been told to start: behind what is known there is none.
  void Begin(int max_tokens) {
    context_ = std::make_unique<grpc::ClientContext>();
    reader_ = stub_->Generate(context_.get(), Uncached(RequestOf(SyntheticIds(kPrompt, 1), max_tokens)));
    v1::GenerateResponse response;
    ASSERT_TRUE(reader_->Read(&response) && response.has_started());
    started_ = response.started();
  }
  // Of what Begin began: all tokens.
  std::vector<int32_t> Rest() {
    std::vector<int32_t> ids;
    v1::GenerateResponse response;
    while (reader_->Read(&response)) {
      ids.insert(ids.end(), response.tokens().ids().begin(), response.tokens().ids().end());
    }
    const grpc::Status status = reader_->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return ids;
  }

  const std::string model_ = WriteSynthetic(SyntheticModel(), "membership");
  testing::NameServer names_;
  std::unique_ptr<ServingProcess> router_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  v1::Started started_;
};

TEST_F(MembershipTest, WorkersJoinAndLeaveTheLineByTheirNames) {
  const auto first = Worker("prefill", "prefill-0"), second = Worker("prefill", "prefill-1");
  const auto decode = Worker("decode", "decode-0");
  names_.Set(kPrefill, {first->address});
  names_.Set(kDecode, {decode->address});
  StartRouter();
  ASSERT_TRUE(PoolBecomes(1, 1));
  const Answer alone = Ask(6);
  EXPECT_THAT(alone.started.plan().workers(), SizeIs(1));
  EXPECT_THAT(alone.ids, SizeIs(6));

  names_.Set(kPrefill, {first->address, second->address});
  ASSERT_TRUE(PoolBecomes(2, 1));
  ASSERT_NO_FATAL_FAILURE(Begin(6));
  EXPECT_THAT(started_.plan().workers(), SizeIs(2));

  // A name that is gone, while its worker computes: the prompt goes on, the next is planned without it.
  names_.Set(kPrefill, {first->address});
  ASSERT_TRUE(PoolBecomes(1, 1));
  EXPECT_THAT(Ask(6).started.plan().workers(), SizeIs(1));
  EXPECT_EQ(Rest(), alone.ids);

  // Look-ups that fail, or are empty, change nothing.
  names_.Fail(true);
  int asked = names_.asked(kPrefill);
  EXPECT_TRUE(Eventually([&] { return names_.asked(kPrefill) > asked + 2; }));
  EXPECT_TRUE(PoolBecomes(1, 1));
  names_.Fail(false);
  names_.Set(kDecode, {});
  asked = names_.asked(kDecode);
  EXPECT_TRUE(Eventually([&] { return names_.asked(kDecode) > asked + 2; }));
  EXPECT_TRUE(PoolBecomes(1, 1));

  names_.Set(kPrefill, {first->address, second->address});
  ASSERT_TRUE(PoolBecomes(2, 1));
  const Answer both = Ask(6);
  EXPECT_THAT(both.started.plan().workers(), SizeIs(2));
  EXPECT_EQ(both.ids, alone.ids);
}

TEST_F(MembershipTest, AWorkerThatIsToEndFinishesWhatItHas) {
  auto first = Worker("prefill", "prefill-0"), second = Worker("prefill", "prefill-1");
  auto decode = Worker("decode", "decode-0");
  names_.Set(kPrefill, {first->address, second->address});
  names_.Set(kDecode, {decode->address});
  StartRouter();
  ASSERT_TRUE(PoolBecomes(2, 1));
  const std::vector<int32_t> undisturbed = Ask(40).ids;
  EXPECT_THAT(undisturbed, SizeIs(40));

  // In the middle of the prompt: the head of the chain.
  ASSERT_NO_FATAL_FAILURE(Begin(40));
  first->process.Signal(SIGTERM);
  ASSERT_TRUE(PoolBecomes(1, 1));
  EXPECT_EQ(Rest(), undisturbed);
  EXPECT_EQ(first->process.Wait(), 0);
  // It has a name still and is not there, as one that has not been started.
  EXPECT_TRUE(Eventually([&] { return Workers("prefill", "connecting") == 1; }));
  EXPECT_EQ(Workers("prefill", "lost"), 0);

  // And the decode worker, while it waits for the KV of its lease.
  ASSERT_NO_FATAL_FAILURE(Begin(40));
  decode->process.Signal(SIGTERM);
  ASSERT_TRUE(PoolBecomes(1, 0));
  EXPECT_EQ(Rest(), undisturbed);
  EXPECT_EQ(decode->process.Wait(), 0);

  // One that is killed has not drained.
  second->process.Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Workers("prefill", "lost") == 1; }));
  EXPECT_EQ(Workers("prefill", "connecting"), 1);
}

// Workers are replaced one by one by such that have another fine-tune: the same header, other weights. While workers
// with the weights of before are there, those of after are refused, by name; when none is left, they are taken.
TEST_F(MembershipTest, AnotherFineTuneIsRefusedWhileTheOneBeforeIsServed) {
  SyntheticModel fine_tuned;
  fine_tuned.seed = 2;
  const std::string other = WriteSynthetic(fine_tuned, "membership_fine_tuned");
  auto first = Worker("prefill", "prefill-0"), second = Worker("prefill", "prefill-1");
  auto decode = Worker("decode", "decode-0");
  names_.Set(kPrefill, {first->address, second->address});
  names_.Set(kDecode, {decode->address});
  StartRouter();
  ASSERT_TRUE(PoolBecomes(2, 1));
  const std::vector<int32_t> before = AskAsUser(6).ids;
  EXPECT_THAT(before, SizeIs(6));
  const std::string weights = Models().weights_fingerprint();

  second->process.Signal(SIGTERM);
  EXPECT_EQ(second->process.Wait(), 0);
  second = Worker("prefill", "prefill-1", other);
  names_.Set(kPrefill, {first->address, second->address});
  ASSERT_TRUE(Eventually([&] { return Workers("prefill", "refused") == 1; }));
  EXPECT_TRUE(PoolBecomes(1, 1));
  EXPECT_THAT(Models().refused_workers(),
              ElementsAre(HasSubstr("worker prefill-1 does not agree: weights_fingerprint is ")));
  const Answer meanwhile = AskAsUser(6);
  EXPECT_TRUE(meanwhile.status.ok()) << meanwhile.status.error_message();
  EXPECT_EQ(meanwhile.finished.usage().cached_prompt_tokens(), kPrompt - 1);
  EXPECT_EQ(meanwhile.ids, before);

  const auto new_decode = Worker("decode", "decode-0", other);
  names_.Set(kPrefill, {second->address});
  names_.Set(kDecode, {new_decode->address});
  ASSERT_TRUE(Eventually([&] {
    const std::string now = Models().weights_fingerprint();
    return !now.empty() && now != weights;
  }));
  ASSERT_TRUE(PoolBecomes(1, 1));
  const Answer after = AskAsUser(6);
  EXPECT_THAT(after.ids, SizeIs(6)) << after.status.error_message();
  EXPECT_NE(after.ids, before);
  EXPECT_EQ(after.finished.usage().cached_prompt_tokens(), 0) << "that was of the other weights";
  const Answer again = AskAsUser(6);
  EXPECT_EQ(again.ids, after.ids);
  EXPECT_EQ(again.finished.usage().cached_prompt_tokens(), kPrompt - 1);
}

}  // namespace
}  // namespace runahead
