#include "client/bench/prompt_file.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

TEST(PromptFile, LinesArePromptsAndChats) {
  const auto read = ReadPromptLines(
      "{\"prompt\": \"One \\u00e9\", \"id\": 3}\r\n"
      "\n"
      R"({"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Hi", "name": "x"}], "max_tokens": 7})",
      64, /*ignore_eos=*/true);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[0].prompt, "One \u00e9");
  EXPECT_EQ((*read)[0].max_tokens, 64);
  EXPECT_TRUE((*read)[0].ignore_eos);
  EXPECT_TRUE((*read)[1].prompt.empty());
  ASSERT_EQ((*read)[1].messages.size(), 2u);
  EXPECT_EQ((*read)[1].messages[1].role, "user");
  EXPECT_EQ((*read)[1].messages[1].content, "Hi");
  EXPECT_EQ((*read)[1].max_tokens, 7);
}

TEST(PromptFile, RefusalsNameTheLine) {
  for (const auto& [line, says] : std::initializer_list<std::pair<std::string, std::string>>{
           {"{", "no JSON object"},
           {"[1]", "no JSON object"},
           {"{}", "exactly one of \"prompt\" and \"messages\""},
           {R"({"prompt": "a", "messages": []})", "exactly one"},
           {R"({"prompt": ""})", "\"prompt\" is no text"},
           {R"({"prompt": ["a"]})", "\"prompt\" is no text"},
           {"{\"prompt\": \"\xff\"}", "no JSON object"},
           {R"({"messages": []})", "no list of messages"},
           {R"({"messages": [{"role": "user"}]})", "both texts"},
           {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", "both texts"},
           {R"({"prompt": "a", "max_tokens": 0})", "\"max_tokens\""},
           {R"({"prompt": "a", "max_tokens": 1e99})", "\"max_tokens\""},
           {R"({"prompt": "a", "max_tokens": 1.5})", "\"max_tokens\""}}) {
    const auto read = ReadPromptLines("{\"prompt\": \"fine\"}\n" + line, 64, false);
    EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << line << ": " << read.status();
    EXPECT_THAT(read.status().message(), HasSubstr("line 2: "));
    EXPECT_THAT(read.status().message(), HasSubstr(says)) << line;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ReadPromptLines("\n \n", 64, false).status()));
}

}  // namespace
}  // namespace runahead
