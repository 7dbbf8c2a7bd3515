// The tokenizer and chat template of the quick-start model against transformers (tests/golden/README.md).
#include <cstdlib>
#include <fstream>
#include <memory>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/tokenizer/chat_template.h"
#include "server/tokenizer/text_stream.h"
#include "server/tokenizer/tokenizer.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

class TokenizerGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* model = std::getenv("RUNAHEAD_TEST_MODEL");
    if (model == nullptr) GTEST_SKIP() << "RUNAHEAD_TEST_MODEL is not set: tests/run sets it to the quick-start model";
    const auto file = OpenGguf(model);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *file;
    const auto tokenizer = Tokenizer::FromModel(*file_);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *tokenizer;
    std::ifstream in("tests/golden/data/tokens.json");
    ASSERT_TRUE(in) << "tests/golden/data/tokens.json cannot be read; the test runs in the repository's root";
    golden_ = nlohmann::json::parse(in);
  }

  std::shared_ptr<const ModelFile> file_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  nlohmann::json golden_;
};

TEST_F(TokenizerGolden, EveryStringHasTheReferencesIds) {
  ASSERT_GE(golden_["strings"].size(), 40u);
  for (const auto& entry : golden_["strings"]) {
    const std::string text = entry["text"];
    EncodeOptions options;
    options.parse_special = entry["special"];
    const auto ids = tokenizer_->Encode(text, options);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, entry["ids"].get<std::vector<int32_t>>()) << text;
  }
}

TEST_F(TokenizerGolden, EveryStringComesBackFromItsIds) {
  for (const auto& entry : golden_["strings"]) {
    const std::vector<int32_t> ids = entry["ids"];
    EXPECT_EQ(tokenizer_->Decode(ids, /*skip_special=*/false), entry["text"].get<std::string>());
    TextStream stream(tokenizer_, /*skip_special=*/false);
    std::string streamed;
    for (int32_t id : ids) streamed += stream.Feed(id);
    EXPECT_EQ(streamed + stream.Finish(), entry["text"].get<std::string>());
  }
}

TEST_F(TokenizerGolden, EveryChatIsRenderedAsTheReferenceDoes) {
  const auto chat_template = ChatTemplate::FromModel(*file_, *tokenizer_);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  ASSERT_FALSE(golden_["chats"].empty());
  for (const auto& entry : golden_["chats"]) {
    Chat chat;
    for (const auto& message : entry["messages"]) chat.messages.push_back({message["role"], message["content"]});
    const std::string text = entry["text"];
    const std::vector<int32_t> ids = entry["ids"];
    EXPECT_EQ(*chat_template->Render(chat), text);
    EXPECT_EQ(*chat_template->Encode(*tokenizer_, chat), ids) << text;
    EXPECT_EQ(*tokenizer_->Encode(text, {.parse_special = true, .add_bos = false}), ids) << text;
  }
}

TEST_F(TokenizerGolden, AnswersEndAtEndOfTurnAndEndOfText) {
  EXPECT_EQ(std::vector<int32_t>(tokenizer_->end_ids().begin(), tokenizer_->end_ids().end()),
            (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(tokenizer_->vocab_size(), 49152);
}

}  // namespace
}  // namespace runahead
