#include "server/rpc/reflection.h"

#include <google/protobuf/descriptor.pb.h>

#include <deque>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "gtest/gtest.h"
#include "tests/server/rpc/loopback.h"
#include "tests/testing/connected_channel.h"

namespace runahead {
namespace {

namespace reflection = grpc::reflection::v1;
using ::testing::Contains;
using ::testing::ElementsAre;

class ReflectionTest : public ::testing::Test {
 protected:
  // Answers to questions of one call.
  std::vector<reflection::ServerReflectionResponse> Ask(
      const std::vector<reflection::ServerReflectionRequest>& questions) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(30));
    const auto stream = stub_->ServerReflectionInfo(&context);
    std::vector<reflection::ServerReflectionResponse> answers;
    for (const auto& question : questions) {
      EXPECT_TRUE(stream->Write(question));
      EXPECT_TRUE(stream->Read(&answers.emplace_back()));
    }
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
    return answers;
  }
  // Of the files that the answer has.
  static std::vector<std::string> Names(const reflection::ServerReflectionResponse& answer) {
    std::vector<std::string> names;
    for (const std::string& bytes : answer.file_descriptor_response().file_descriptor_proto()) {
      google::protobuf::FileDescriptorProto file;
      EXPECT_TRUE(file.ParseFromString(bytes));
      names.push_back(file.name());
    }
    return names;
  }

  testing::FakeInference service_{testing::FinishAtOnce};
  const std::unique_ptr<RpcServer> server_ = testing::StartServer(service_);
  const std::unique_ptr<reflection::ServerReflection::Stub> stub_ =
      reflection::ServerReflection::NewStub(testing::Connected(MakeChannel(server_->address())));
};

TEST_F(ReflectionTest, ListsAllServices) {
  reflection::ServerReflectionRequest question;
  question.set_host("any");
  question.set_list_services("*");
  const auto answers = Ask({question});
  std::vector<std::string> names;
  for (const auto& service : answers[0].list_services_response().service()) names.push_back(service.name());
  EXPECT_THAT(names, Contains("runahead.v1.Inference"));
  EXPECT_THAT(names, Contains("grpc.reflection.v1.ServerReflection"));
  EXPECT_THAT(names, Contains("grpc.reflection.v1alpha.ServerReflection"));
  EXPECT_THAT(names, ::testing::Not(Contains("grpc.channelz.v1.Channelz")));
  EXPECT_EQ(answers[0].valid_host(), "any");
  EXPECT_EQ(answers[0].original_request().list_services(), "*");
}

TEST_F(ReflectionTest, GivesAFileWithAllThatItNeeds) {
  reflection::ServerReflectionRequest method, file, itself;
  method.set_file_containing_symbol("runahead.v1.Inference.Generate");
  file.set_file_by_filename("runahead/v1/status.proto");
  itself.set_file_containing_symbol("grpc.reflection.v1.ServerReflection");
  const auto answers = Ask({method, file, itself});
  EXPECT_THAT(Names(answers[0]), ElementsAre("runahead/v1/inference.proto"));
  EXPECT_THAT(Names(answers[1]),
              ElementsAre("runahead/v1/status.proto", "google/protobuf/any.proto", "google/protobuf/duration.proto"));
  EXPECT_THAT(Names(answers[2]), ElementsAre("grpc/reflection/v1/reflection.proto"));
}

TEST_F(ReflectionTest, KnowsExtensions) {
  reflection::ServerReflectionRequest numbers, extension;
  numbers.set_all_extension_numbers_of_type("runahead.v1.Model");
  extension.mutable_file_containing_extension()->set_containing_type("runahead.v1.Model");
  extension.mutable_file_containing_extension()->set_extension_number(100);
  const auto answers = Ask({numbers, extension});
  EXPECT_EQ(answers[0].all_extension_numbers_response().base_type_name(), "runahead.v1.Model");
  EXPECT_EQ(answers[0].all_extension_numbers_response().extension_number_size(), 0);
  EXPECT_EQ(answers[1].error_response().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ReflectionTest, SaysWhatItDoesNotHaveAndGoesOn) {
  reflection::ServerReflectionRequest symbol, file, nothing, type;
  symbol.set_file_containing_symbol("runahead.v1.Nobody");
  file.set_file_by_filename("nobody.proto");
  type.set_all_extension_numbers_of_type("runahead.v1.Nobody");
  const auto answers = Ask({symbol, file, type, nothing});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(answers[static_cast<size_t>(i)].error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  }
  EXPECT_EQ(answers[0].error_response().error_message(), "there is no runahead.v1.Nobody");
  EXPECT_EQ(answers[3].error_response().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// gRPC's own service of the older name took a thread for each open stream, from anybody.
TEST_F(ReflectionTest, OpenStreamsOfEitherNameTakeNoThread) {
  namespace older = grpc::reflection::v1alpha;
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  const auto older_stub = older::ServerReflection::NewStub(testing::Connected(MakeChannel(server_->address())));
  std::deque<grpc::ClientContext> contexts;
  std::vector<std::unique_ptr<
      grpc::ClientReaderWriter<older::ServerReflectionRequest, older::ServerReflectionResponse>>> streams;
  const auto before = threads();
  constexpr int kStreams = 60;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(older_stub->ServerReflectionInfo(&contexts.emplace_back()));
    older::ServerReflectionRequest question;
    question.set_list_services("*");
    older::ServerReflectionResponse answer;
    ASSERT_TRUE(streams.back()->Write(question));
    ASSERT_TRUE(streams.back()->Read(&answer));
    EXPECT_GT(answer.list_services_response().service_size(), 2);
  }
  EXPECT_LT(threads(), before + kStreams / 3) << "gRPC may start a few of its own";
  for (const auto& stream : streams) stream->WritesDone();
  for (const auto& stream : streams) EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace runahead
