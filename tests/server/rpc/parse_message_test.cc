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

int64_t CountedBytes(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  grpc::ByteBuffer buffer(&slice, 1);
  return ParsedBytes(buffer, *v1::GenerateRequest::descriptor());
}

// Never less than what it is for, for what is small on the wire and large in memory, as for what is neither.
TEST(ParseMessage, CountsWhatAMessageWillTake) {
  v1::GenerateRequest chat, ids, stops, prompt, calls, biases;
  for (int i = 0; i < 50'000; ++i) {
    chat.mutable_chat()->add_messages();
    calls.mutable_chat()->add_messages()->set_tool_calls("[]");
    ids.mutable_token_ids()->add_ids(i);
    stops.mutable_stop()->add_stop("a");
    (*biases.mutable_sampling()->mutable_logit_bias())[i] = 1;
  }
  prompt.set_prompt(std::string(1 << 20, 'a'));
  for (const v1::GenerateRequest& request : {chat, ids, stops, prompt, calls, biases}) {
    const auto least = static_cast<int64_t>(request.SpaceUsedLong());
    const int64_t counted = CountedBytes(request.SerializeAsString());
    EXPECT_GE(counted, least);
    EXPECT_LT(counted, 10 * least);
  }
  EXPECT_LT(CountedBytes(prompt.SerializeAsString()), (1 << 20) + 1000);
  EXPECT_GE(CountedBytes(std::string("\xff\xff\xff")), 0);
  // Cut off within a chat message: what came is counted.
  EXPECT_GT(CountedBytes(chat.SerializeAsString().substr(0, 50'000)), 0);
}

// A part that the message's type does not have is kept as it came. A group holds any number of them.
TEST(ParseMessage, CountsWhatIsWithinUnknownGroups) {
  constexpr char kBegin = (10 << 3) | 3, kEnd = (10 << 3) | 4, kText = (4 << 3) | 2, kNumber = 4 << 3;
  std::string texts(1, kBegin), numbers(1, kBegin), groups;
  for (int i = 0; i < 50'000; ++i) {
    texts.append({kText, '\0'});
    numbers.append({kNumber, '\1'});
    groups.append({kBegin, kBegin, kEnd, kEnd});
  }
  for (const std::string& bytes : {texts + kEnd, numbers + kEnd, groups}) {
    v1::GenerateRequest request;
    ASSERT_TRUE(request.ParseFromString(bytes));
    const auto least = static_cast<int64_t>(request.SpaceUsedLong());
    EXPECT_GE(CountedBytes(bytes), least);
    EXPECT_LT(CountedBytes(bytes), 10 * least);
  }
  // One that never ends, and more of them in each other than are parsed.
  EXPECT_GT(CountedBytes(texts), 50'000);
  EXPECT_GT(CountedBytes(std::string(1000, kBegin)), 0);
}

}  // namespace
}  // namespace runahead
