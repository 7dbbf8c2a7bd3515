#include "server/gateway/openai/rule_members.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

absl::StatusOr<v1::GenerateRequest> ReadRules(const std::string& members) {
  const std::string text = absl::StrCat("{", members, "}");
  absl::StatusOr<JsonObject> body = JsonObject::ReadBody(text);
  if (!body.ok()) return body.status();
  v1::GenerateRequest request;
  const absl::Status status = ReadRuleMembers(*body, request);
  if (!status.ok()) return status;
  EXPECT_TRUE(body->Unread().empty()) << members;
  return request;
}

struct GoodRule {
  const char* members;
  const char* request;
};

class RuleMembersBecome : public ::testing::TestWithParam<GoodRule> {};

TEST_P(RuleMembersBecome, AFieldOfTheRequest) {
  const absl::StatusOr<v1::GenerateRequest> request = ReadRules(GetParam().members);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->ShortDebugString(), GetParam().request);
}

INSTANTIATE_TEST_SUITE_P(
    Each, RuleMembersBecome,
    ::testing::Values(
        GoodRule{"", "sampling { } stop { }"}, GoodRule{"\"logit_bias\":{}", "sampling { } stop { }"},
        GoodRule{"\"logit_bias\":{\"50256\":-100}", "sampling { logit_bias { key: 50256 value: -100 } } stop { }"},
        GoodRule{"\"logit_bias\":{\"-1\":200.5}", "sampling { logit_bias { key: -1 value: 200.5 } } stop { }"},
        GoodRule{"\"bad_words\":[]", "sampling { } stop { }"},
        GoodRule{"\"bad_words\":[\"a\",\"b c\"]", "sampling { } stop { bad_words: \"a\" bad_words: \"b c\" }"},
        GoodRule{"\"min_tokens\":0", "sampling { } stop { min_tokens: 0 }"},
        GoodRule{"\"min_tokens\":7", "sampling { } stop { min_tokens: 7 }"},
        GoodRule{"\"truncate_prompt_tokens\":5", "sampling { } stop { } truncate_prompt: 5"},
        GoodRule{"\"truncate_prompt_tokens\":null", "sampling { } stop { }"},
        GoodRule{"\"timeout\":2.5", "sampling { } stop { } timeout_s: 2.5"},
        GoodRule{"\"timeout\":-1", "sampling { } stop { } timeout_s: -1"},
        GoodRule{"\"user\":\"me\"", "sampling { } stop { } user: \"me\""}));

struct BadRule {
  const char* message;
  const char* members;
};

class RuleMembersRefuse : public ::testing::TestWithParam<BadRule> {};

TEST_P(RuleMembersRefuse, NamingWhatIsAllowed) {
  const absl::Status status = ReadRules(GetParam().members).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Each, RuleMembersRefuse,
    ::testing::Values(
        BadRule{"logit_bias: it is 5; an object is allowed", "\"logit_bias\":5"},
        BadRule{"logit_bias: \"a\" is not the id of a token", "\"logit_bias\":{\"a\":1}"},
        BadRule{"logit_bias: \"1.5\" is not the id of a token", "\"logit_bias\":{\"1.5\":1}"},
        BadRule{"logit_bias[5]: it is a string; a number from -100 to 100 is allowed", "\"logit_bias\":{\"5\":\"1\"}"},
        BadRule{"logit_bias[5]: it is given twice", "\"logit_bias\":{\"5\":1,\"05\":1}"},
        BadRule{"logit_bias[5]: it is 1e300; a number from -100 to 100 is allowed", "\"logit_bias\":{\"5\":1e300}"},
        BadRule{"bad_words: it is a string; an array of strings is allowed", "\"bad_words\":\"a\""},
        BadRule{"bad_words[1]: it is 5; a string is allowed", "\"bad_words\":[\"a\",5]"},
        BadRule{"min_tokens: it is -1; an integer of at least 0 is allowed", "\"min_tokens\":-1"},
        BadRule{"min_tokens: it is a string; an integer of at least 0 is allowed", "\"min_tokens\":\"0\""},
        BadRule{"truncate_prompt_tokens: it is 0; an integer of at least 1 is allowed", "\"truncate_prompt_tokens\":0"},
        BadRule{"timeout: it is a string; a number of seconds above 0 is allowed", "\"timeout\":\"5s\""},
        BadRule{"user: it is 5; a string is allowed", "\"user\":5"}));

}  // namespace
}  // namespace runahead
