#include "server/router/structure_check.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/grammar/grammar_compiler.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

class StructureCheck : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!StructuredOutputStatus().ok()) GTEST_SKIP() << "this build has no structured output";
  }
  v1::GenerateRequest request_;
};

TEST_F(StructureCheck, LetsPassWhatCanBePromised) {
  EXPECT_TRUE(CheckStructureOf(request_).ok());
  request_.mutable_structure()->set_json_schema(R"({"type":"integer"})");
  EXPECT_TRUE(CheckStructureOf(request_).ok());
}

TEST_F(StructureCheck, NamesTheFieldForProgramsToo) {
  request_.mutable_structure()->set_json_schema(R"({"type":"array","uniqueItems":true})");
  const absl::Status status = CheckStructureOf(request_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlamedField(status), "structure.json_schema");
  EXPECT_THAT(std::string(status.message()), HasSubstr("at the root: the keyword \"uniqueItems\" is not supported"));
  request_.mutable_structure();
  request_.mutable_structure()->clear_form();
  EXPECT_EQ(BlamedField(CheckStructureOf(request_)), "structure");
}

TEST_F(StructureCheck, SaysByItselfWhereAnAnswerEnds) {
  request_.mutable_structure()->set_regex("a");
  request_.mutable_stop()->set_ignore_eos(true);
  EXPECT_EQ(BlamedField(CheckStructureOf(request_)), "stop.ignore_eos");
  request_.mutable_stop()->set_ignore_eos(false);
  request_.mutable_stop()->set_min_tokens(1);
  EXPECT_EQ(BlamedField(CheckStructureOf(request_)), "stop.min_tokens");
}

}  // namespace
}  // namespace runahead
