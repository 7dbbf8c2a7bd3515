// What bytes that are no message, and calls of methods that nobody has, are answered: by each method of each service of
// a router and a worker, as their reflection lists them.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/rpc/channel.h"
#include "tests/integration/serving_process.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace runahead {
namespace {

namespace reflection = grpc::reflection::v1;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using testing::CallRaw;
using ::testing::HasSubstr;
using testing::ServingProcess;

std::vector<const ServiceDescriptor*> ServicesOf(const std::shared_ptr<grpc::Channel>& channel) {
  // Those that nothing else here links.
  grpc::health::v1::HealthCheckRequest::descriptor();
  grpc::reflection::v1alpha::ServerReflectionRequest::descriptor();
  vllm::grpc::engine::HealthCheckRequest::descriptor();
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  const auto stream = reflection::ServerReflection::NewStub(channel)->ServerReflectionInfo(&context);
  reflection::ServerReflectionRequest question;
  question.set_list_services("*");
  reflection::ServerReflectionResponse answer;
  EXPECT_TRUE(stream->Write(question) && stream->Read(&answer));
  std::vector<const ServiceDescriptor*> services;
  for (const auto& service : answer.list_services_response().service()) {
    const auto* const found = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service.name());
    EXPECT_NE(found, nullptr) << service.name() << ": link its proto file to this test";
    if (found != nullptr) services.push_back(found);
  }
  return services;
}

std::string PathOf(const MethodDescriptor& method) {
  return absl::StrCat("/", method.service()->full_name(), "/", method.name());
}

class WrongBytesTest : public ::testing::Test {
 protected:
  const std::string model_ = WriteSynthetic(SmallModel(), "wrong_bytes");
  ServingProcess worker_{{RUNAHEAD_WORKER, "--role", "both", "--threads", "1", "--dtype", "f32", "--model", model_}};
  ServingProcess router_{{RUNAHEAD_ROUTER, "--model", model_, "--workers", "role=both,address=127.0.0.1:1"}};
};

TEST_F(WrongBytesTest, GarbageIsAnInvalidArgumentOfEachMethod) {
  for (const ServingProcess* const process : {&router_, &worker_}) {
    const auto channel = MakeChannel(process->address);
    int methods = 0;
    for (const ServiceDescriptor* const service : ServicesOf(channel)) {
      for (int i = 0; i < service->method_count(); ++i, ++methods) {
        const MethodDescriptor& method = *service->method(i);
        SCOPED_TRACE(PathOf(method));
        std::string response;
        const grpc::Status status = CallRaw(channel, PathOf(method), "\xff\xff\xff", &response);
        EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
        EXPECT_THAT(status.error_message(), HasSubstr(method.input_type()->full_name()));
      }
    }
    EXPECT_GE(methods, 9);
  }
}

TEST_F(WrongBytesTest, AMethodThatNobodyHasIsUnimplementedAndTheOthersAreNamed) {
  for (const ServingProcess* const process : {&router_, &worker_}) {
    const auto channel = MakeChannel(process->address);
    const auto expect_unknown = [&](const std::string& path, const std::string& named, const std::string& other) {
      SCOPED_TRACE(path);
      std::string response;
      const grpc::Status status = CallRaw(channel, path, "", &response);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
      EXPECT_THAT(status.error_message(), HasSubstr(named));
      EXPECT_THAT(status.error_message(), HasSubstr(other));
    };
    for (const ServiceDescriptor* const service : ServicesOf(channel)) {
      expect_unknown(absl::StrCat("/", service->full_name(), "/NoSuch"), "NoSuch", service->method(0)->name());
      expect_unknown("/no.Such/Method", "/no.Such/Method", service->full_name());
    }
  }
}

}  // namespace
}  // namespace runahead
