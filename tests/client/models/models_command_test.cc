// `runahead models --router` as a program, with a router that the test writes.
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/generate/fake_inference.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using testing::FakeInference;
using testing::TestProcess;

class ModelsCommandTest : public ::testing::Test {
 protected:
  ModelsCommandTest() : router_([](const v1::GenerateRequest&, FakeInference::Writer&) { return absl::OkStatus(); }) {
    router_.model.set_context_length(2048);
    router_.model.set_vocabulary_size(320);
    router_.model.set_dtype("int8");
    router_.model.set_fingerprint("abc");
    router_.model.set_prefill_workers(2);
    router_.model.set_decode_workers(1);
  }

  std::string Models(const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {RUNAHEAD_BINARY, "models", "--router", router_.address()};
    args.insert(args.end(), more.begin(), more.end());
    TestProcess process(args);
    EXPECT_EQ(process.Wait(), 0) << process.err();
    return process.out();
  }

  FakeInference router_;
};

TEST_F(ModelsCommandTest, SaysWhatIsComputedInAndWhatKvIsKeptIn) {
  router_.model.set_kv_dtype("f16");
  EXPECT_EQ(Models(),
            "fake-model: context 2048 tokens, vocabulary 320, int8 with KV in f16, 2 prefill and 1 decode workers, "
            "abc\n");
  const nlohmann::json model = nlohmann::json::parse(Models({"--json"})).at("models").at(0);
  EXPECT_EQ(model.at("dtype"), "int8");
  EXPECT_EQ(model.at("kv_dtype"), "f16");
}

TEST_F(ModelsCommandTest, NamesRefusedWorkersAndTheWeights) {
  router_.model.set_weights_fingerprint("f00d");
  router_.model.add_refused_workers("worker prefill-1 does not agree: weights_fingerprint is 1, wanted 2");
  EXPECT_EQ(Models(),
            "fake-model: context 2048 tokens, vocabulary 320, int8, 2 prefill and 1 decode workers, abc\n"
            "  refused: worker prefill-1 does not agree: weights_fingerprint is 1, wanted 2\n");
  const nlohmann::json model = nlohmann::json::parse(Models({"--json"})).at("models").at(0);
  EXPECT_EQ(model.at("weights_fingerprint"), "f00d");
  EXPECT_EQ(model.at("refused_workers").at(0), "worker prefill-1 does not agree: weights_fingerprint is 1, wanted 2");
}

// While no worker is ready, or of a router of before.
TEST_F(ModelsCommandTest, SaysNothingOfKvWhereTheRouterDoesNot) {
  EXPECT_EQ(Models(), "fake-model: context 2048 tokens, vocabulary 320, int8, 2 prefill and 1 decode workers, abc\n");
  EXPECT_EQ(nlohmann::json::parse(Models({"--json"})).at("models").at(0).at("kv_dtype"), "");
}

}  // namespace
}  // namespace runahead
