#include "server/rpc/parse_message.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runahead/v1/inference.pb.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr char kBad[] = "a\xff";

absl::Status Parse(const std::string& bytes, v1::GenerateRequest& request) {
  const grpc::Slice slice(bytes);
  grpc::ByteBuffer buffer(&slice, 1);
  return ParseMessage(buffer, request);
}

absl::Status Parse(const std::string& bytes) {
  v1::GenerateRequest request;
  return Parse(bytes, request);
}

// Of the bytes of a text field: its tag, its length, and what it holds. `text` is short.
std::string Field(int number, const std::string& text) {
  return absl::StrCat(std::string(1, static_cast<char>(number << 3 | 2)),
                      std::string(1, static_cast<char>(text.size())), text);
}

TEST(ParseMessage, FillsTheMessage) {
  v1::GenerateRequest given, got;
  given.mutable_chat()->add_messages()->set_content("Straße");
  ASSERT_TRUE(Parse(given.SerializeAsString(), got).ok());
  EXPECT_EQ(got.SerializeAsString(), given.SerializeAsString());
  EXPECT_TRUE(Parse("", got).ok());
}

TEST(ParseMessage, TakesFieldsThatItDoesNotKnow) {
  EXPECT_TRUE(Parse(Field(15, kBad)).ok());  // bytes, for all we know
}

TEST(ParseMessage, NamesTheFieldWhoseTextIsNoUtf8) {
  const auto blamed = [](const std::string& bytes) {
    const absl::Status status = Parse(bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return BlamedField(status).value_or("none");
  };
  EXPECT_EQ(blamed(Field(2, kBad)), "prompt");
  EXPECT_EQ(blamed(Field(5, "") + Field(8, kBad)), "request_id");
  // chat { messages { role } messages { content } }
  EXPECT_EQ(blamed(Field(3, Field(1, Field(1, "user")) + Field(1, Field(2, kBad)))), "chat.messages[1].content");
  EXPECT_EQ(blamed(Field(6, Field(2, "x") + Field(2, kBad))), "stop.stop[1]");
}

TEST(ParseMessage, SaysWhatGarbageWasMeantToBe) {
  for (const std::string& garbage : {std::string("\xff\xff\xff"), std::string("\x12\x7fshort"), std::string("\x00", 1),
                                     Field(3, Field(1, "\x0a\x7f"))}) {
    const absl::Status status = Parse(garbage);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), absl::StrCat("the ", garbage.size(),
                                             " bytes of the request are no runahead.v1.GenerateRequest; does the "
                                             "client have this service's proto file?"));
  }
}

TEST(ParseMessage, LeavesNothingOfWhatItRefuses) {
  v1::GenerateRequest request;
  EXPECT_FALSE(Parse(Field(1, "model") + Field(2, kBad), request).ok());
  EXPECT_EQ(request.ByteSizeLong(), 0u);
}

}  // namespace
}  // namespace runahead
