// Members that both routes read alike: what they become, and what is refused.
#include "server/gateway/openai/sampling_members.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/openai/unsupported_members.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

absl::StatusOr<v1::GenerateRequest> ReadMembers(const std::string& members) {
  const std::string text = absl::StrCat("{", members, "}");
  absl::StatusOr<JsonObject> body = JsonObject::ReadBody(text);
  if (!body.ok()) return body.status();
  v1::GenerateRequest request;
  const absl::Status status = ReadSamplingMembers(*body, {}, request);
  if (!status.ok()) return status;
  EXPECT_TRUE(body->Unread().empty()) << members;
  return request;
}

struct GoodMember {
  const char* members;
  const char* request;  // all that is beside an absent temperature
};

class SamplingMembersBecome : public ::testing::TestWithParam<GoodMember> {};

TEST_P(SamplingMembersBecome, AFieldOfTheRequest) {
  const absl::StatusOr<v1::GenerateRequest> request = ReadMembers(GetParam().members);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->ShortDebugString(), GetParam().request);
}

INSTANTIATE_TEST_SUITE_P(
    Each, SamplingMembersBecome,
    ::testing::Values(
        GoodMember{"", "sampling { temperature: 1 } stop { }"},
        GoodMember{"\"temperature\":0", "sampling { temperature: 0 } stop { }"},
        GoodMember{"\"temperature\":0.5", "sampling { temperature: 0.5 } stop { }"},
        GoodMember{"\"top_p\":0.25", "sampling { temperature: 1 top_p: 0.25 } stop { }"},
        GoodMember{"\"top_k\":40", "sampling { temperature: 1 top_k: 40 } stop { }"},
        GoodMember{"\"top_k\":-1", "sampling { temperature: 1 top_k: 0 } stop { }"},
        GoodMember{"\"top_k\":0", "sampling { temperature: 1 top_k: 0 } stop { }"},
        GoodMember{"\"min_p\":0.5", "sampling { temperature: 1 min_p: 0.5 } stop { }"},
        GoodMember{"\"repetition_penalty\":2", "sampling { temperature: 1 repetition_penalty: 2 } stop { }"},
        GoodMember{"\"presence_penalty\":-2", "sampling { temperature: 1 presence_penalty: -2 } stop { }"},
        GoodMember{"\"frequency_penalty\":1.5", "sampling { temperature: 1 frequency_penalty: 1.5 } stop { }"},
        GoodMember{"\"seed\":7", "sampling { temperature: 1 seed: 7 } stop { }"},
        GoodMember{"\"seed\":-1", "sampling { temperature: 1 seed: 18446744073709551615 } stop { }"},
        GoodMember{"\"seed\":18446744073709551615", "sampling { temperature: 1 seed: 18446744073709551615 } stop { }"},
        GoodMember{"\"stop\":\"END\"", "sampling { temperature: 1 } stop { stop: \"END\" }"},
        GoodMember{"\"stop\":[\"a\",\"b\"]", "sampling { temperature: 1 } stop { stop: \"a\" stop: \"b\" }"},
        GoodMember{"\"stop\":[]", "sampling { temperature: 1 } stop { }"},
        GoodMember{"\"stop_token_ids\":[5,6]", "sampling { temperature: 1 } stop { stop_ids: 5 stop_ids: 6 }"},
        GoodMember{"\"ignore_eos\":true", "sampling { temperature: 1 } stop { ignore_eos: true }"},
        GoodMember{"\"priority\":3", "sampling { temperature: 1 } stop { } priority: PRIORITY_LOW"},
        GoodMember{"\"priority\":-3", "sampling { temperature: 1 } stop { }"},
        // Out of the router's range: it says so itself.
        GoodMember{"\"temperature\":200", "sampling { temperature: 200 } stop { }"},
        GoodMember{"\"top_k\":-2", "sampling { temperature: 1 top_k: -2 } stop { }"}));

struct BadMember {
  const char* message;
  const char* members;
};

class SamplingMembersRefuse : public ::testing::TestWithParam<BadMember> {};

TEST_P(SamplingMembersRefuse, NamingWhatIsAllowed) {
  const absl::Status status = ReadMembers(GetParam().members).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Each, SamplingMembersRefuse,
    ::testing::Values(
        BadMember{"temperature: it is a string; a number from 0 to 100 is allowed", "\"temperature\":\"1\""},
        BadMember{"temperature: it is 1e300; a number from 0 to 100 is allowed", "\"temperature\":1e300"},
        BadMember{"top_p: it is true; a number above 0, at most 1 is allowed", "\"top_p\":true"},
        BadMember{"min_p: it is an array; a number of at least 0, below 1 is allowed", "\"min_p\":[]"},
        BadMember{"repetition_penalty: it is an object; a number above 0, at most 10 is allowed",
                  "\"repetition_penalty\":{}"},
        BadMember{"presence_penalty: it is a string; a number from -2 to 2 is allowed", "\"presence_penalty\":\"\""},
        BadMember{"frequency_penalty: it is a string; a number from -2 to 2 is allowed", "\"frequency_penalty\":\"\""},
        BadMember{"seed: it is 1.5; an integer of 64 bits is allowed", "\"seed\":1.5"},
        BadMember{"seed: it is 18446744073709551616; an integer of 64 bits is allowed",
                  "\"seed\":18446744073709551616"},
        BadMember{"seed: it is a string; an integer of 64 bits is allowed", "\"seed\":\"5\""},
        BadMember{"top_k: it is 2.5; an integer of at least -1 is allowed", "\"top_k\":2.5"},
        BadMember{"top_k: it is 3000000000; an integer of at least -1 is allowed", "\"top_k\":3000000000"},
        BadMember{"stop: it is 5; a string or an array of strings is allowed", "\"stop\":5"},
        BadMember{"stop[1]: it is 5; a string is allowed", "\"stop\":[\"a\",5]"},
        BadMember{"stop_token_ids: it is 5; an array of integers is allowed", "\"stop_token_ids\":5"},
        BadMember{"ignore_eos: it is 1; true or false is allowed", "\"ignore_eos\":1"},
        BadMember{"priority: it is a string; an integer is allowed", "\"priority\":\"low\""}));

absl::Status Supported(const std::string& members, bool chat) {
  const std::string text = absl::StrCat("{", members, "}");
  absl::StatusOr<JsonObject> body = JsonObject::ReadBody(text);
  if (!body.ok()) return body.status();
  const absl::Status status = RefuseUnsupported(*body, chat);
  EXPECT_TRUE(!status.ok() || body->Unread().empty()) << members;
  return status;
}

TEST(UnsupportedMembers, WhatAsksForNothingPasses) {
  for (const char* members : {"\"best_of\":1",
                              "\"suffix\":\"\"",
                              "\"allowed_token_ids\":[]",
                              "\"use_beam_search\":false",
                              "\"length_penalty\":1.0",
                              "\"early_stopping\":false",
                              "\"skip_special_tokens\":true",
                              "\"include_stop_str_in_output\":false",
                              "\"modalities\":[\"text\"]",
                              "\"functions\":[]",
                              "\"function_call\":\"none\"",
                              "\"documents\":[]",
                              "\"metadata\":{\"a\":1}",
                              "\"store\":false",
                              "\"service_tier\":\"default\"",
                              "\"parallel_tool_calls\":true",
                              "\"return_token_ids\":false"}) {
    EXPECT_TRUE(Supported(members, true).ok()) << members;
    EXPECT_TRUE(Supported(members, false).ok()) << members;
  }
}

TEST(UnsupportedMembers, WhatIsKnownButNotDoneIsNamed) {
  for (const char* member : {"\"best_of\":2",
                             "\"suffix\":\"x\"",
                             "\"allowed_token_ids\":[1]",
                             "\"use_beam_search\":true",
                             "\"length_penalty\":0.5",
                             "\"early_stopping\":true",
                             "\"skip_special_tokens\":false",
                             "\"include_stop_str_in_output\":true",
                             "\"functions\":[{}]",
                             "\"function_call\":{\"name\":\"f\"}",
                             "\"documents\":[{}]",
                             "\"structural_tag\":\"s\"",
                             "\"audio\":{}",
                             "\"prediction\":{}",
                             "\"reasoning_effort\":\"low\"",
                             "\"chat_template\":\"x\"",
                             "\"cache_salt\":\"x\"",
                             "\"return_token_ids\":true",
                             "\"include_reasoning\":false",
                             "\"web_search_options\":{}",
                             "\"verbosity\":\"low\"",
                             "\"kv_transfer_params\":{\"a\":1}",
                             "\"use_beam_search\":0"}) {
    const std::string text = member;
    const std::string key = text.substr(1, text.find('"', 1) - 1);
    for (const bool chat : {true, false}) {
      const absl::Status status = Supported(member, chat);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << member;
      EXPECT_EQ(status.message(), key + ": it is not supported here; leave it out");
      EXPECT_EQ(BlamedField(status), key);
    }
  }
}

TEST(UnsupportedMembers, NothingButText) {
  EXPECT_EQ(Supported("\"modalities\":[\"text\",\"audio\"]", true).message(),
            "modalities: none is supported here but \"text\"");
  EXPECT_EQ(Supported("\"modalities\":\"text\"", true).message(),
            "modalities: it is a string; an array of strings is allowed");
}

TEST(UnsupportedMembers, SpecialTokensAreAsTheRouteHasThem) {
  EXPECT_TRUE(Supported("\"add_special_tokens\":false,\"echo\":false", true).ok());
  EXPECT_FALSE(Supported("\"add_special_tokens\":true", true).ok());
  EXPECT_TRUE(Supported("\"add_special_tokens\":true", false).ok());
  EXPECT_FALSE(Supported("\"add_special_tokens\":false", false).ok());
}

}  // namespace
}  // namespace runahead
