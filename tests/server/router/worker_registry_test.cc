// What an operator is told of the workers that join.
#include "server/router/worker_registry.h"

#include "gmock/gmock.h"
#include "tests/testing/router_fixture.h"

namespace runahead {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class WorkerRegistryTest : public testing::RouterFixture {
 protected:
  // Two prefill workers and one that decodes have joined; of this build is prefill-1, the others are of 1.0. What was
  // logged.
  std::string LogOfJoining(const std::string& build_of_one) {
    ::testing::internal::CaptureStderr();
    Start({.able = [&](v1::Capabilities& able) { able.set_build(able.name() == "prefill-1" ? build_of_one : "1.0"); }});
    AwaitReady(2, 1);
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->ListModels(&context, {}, &models_).ok());
    registry_.reset();  // its threads end: all is logged
    return ::testing::internal::GetCapturedStderr();
  }

  v1::ListModelsResponse models_;
};

TEST_F(WorkerRegistryTest, SaysWhichWorkersAreOfDifferentBuilds) {
  const std::string log = LogOfJoining("2.0");
  // Whichever of them came last.
  EXPECT_THAT(log, ContainsRegex("W .*(prefill-1 is of build 2\\.0, (prefill|decode)-0 of 1\\.0|"
                                 "(prefill|decode)-0 is of build 1\\.0, prefill-1 of 2\\.0)\n"));
  EXPECT_THAT(models_.models(0).builds(), ElementsAre("1.0", "2.0"));
}

TEST_F(WorkerRegistryTest, SaysNothingOfBuildsThatAreTheSame) {
  const std::string log = LogOfJoining("1.0");
  EXPECT_THAT(log, HasSubstr("prefill-1 at "));
  EXPECT_THAT(log, Not(HasSubstr("is of build")));
  EXPECT_THAT(models_.models(0).builds(), ElementsAre("1.0"));
}

}  // namespace
}  // namespace runahead
