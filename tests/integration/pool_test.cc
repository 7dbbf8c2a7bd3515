// Which workers a router takes, with real processes.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ServingProcess;

// A program that has said where it listens.
class PoolTest : public ::testing::Test {
 protected:
  std::unique_ptr<ServingProcess> Worker(const std::string& role, const std::string& name, const std::string& dtype) {
    return std::make_unique<ServingProcess>(std::vector<std::string>{RUNAHEAD_WORKER, "--role", role, "--name", name,
                                                                     "--dtype", dtype, "--threads", "1", "--model",
                                                                     model_, "--kv-memory", "64MiB"});
  }

  const std::string model_ = WriteSynthetic(SyntheticModel(), "pool");
};

TEST_F(PoolTest, TheFirstWorkerToAnswerIsRefusedWhereMostOfTheListComputesInAnotherDtype) {
  const auto odd = Worker("prefill", "odd", "bf16");
  if (odd->address.empty() && odd->process.err().find("bf16 needs") != std::string::npos) {
    GTEST_SKIP() << "this CPU computes in f32 only";
  }
  const auto prefill = Worker("prefill", "prefill-1", "f32"), decode = Worker("decode", "decode-0", "f32");
  for (const auto& later : {&prefill, &decode}) (*later)->process.Signal(SIGSTOP);
  ServingProcess router({RUNAHEAD_ROUTER, "--model", model_, "--workers=role=prefill,address=" + odd->address,
                         "--workers=role=prefill,address=" + prefill->address,
                         "--workers=role=decode,address=" + decode->address});
  ASSERT_TRUE(router.process.ReadErrUntil("odd at " + odd->address));  // it has answered, and nobody else can
  for (const auto& later : {&prefill, &decode}) (*later)->process.Signal(SIGCONT);

  ASSERT_TRUE(router.process.ReadErrUntil(", wanted "));
  EXPECT_THAT(router.process.err(), HasSubstr("worker odd does not agree: compute_dtype is bf16, wanted f32"));
  const auto stub = v1::Inference::NewStub(grpc::CreateChannel(router.address, grpc::InsecureChannelCredentials()));
  v1::Model pool;
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::ListModelsResponse models;
    if (!stub->ListModels(&context, {}, &models).ok()) return false;
    pool = models.models(0);
    return pool.prefill_workers() == 1 && pool.decode_workers() == 1;
  })) << pool.DebugString();
  EXPECT_EQ(pool.dtype(), "f32");
  EXPECT_EQ(pool.builds_size(), 1);  // all are of one binary
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, Uncached(RequestOf(SyntheticIds(20, 1), 4)));
  v1::GenerateResponse started, more;
  ASSERT_TRUE(reader->Read(&started));
  while (reader->Read(&more)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(started.started().plan().workers(), ElementsAre("prefill-1"));
}

}  // namespace
}  // namespace runahead
