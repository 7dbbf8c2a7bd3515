// Templates in the manner of many families against transformers (tests/golden/README.md).
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/tokenizer/chat_template.h"
#include "tests/testing/json_chat.h"
#include "tests/testing/tokenizer_json.h"

namespace runahead {
namespace {

constexpr char kBytesOnly[] = R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}})";

class TemplateGolden : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream in("tests/golden/data/templates.json");
    ASSERT_TRUE(in) << "tests/golden/data/templates.json cannot be read; the test runs in the repository's root";
    golden_ = nlohmann::json::parse(in);
    for (const auto& conversation : golden_["conversations"]) chats_.push_back(ChatFromJson(conversation.dump()));
  }

  ChatTemplate Parsed(const std::string& name) {
    std::ifstream in("tests/golden/templates/" + name + ".jinja");
    const std::string source(std::istreambuf_iterator<char>(in), {});
    EXPECT_FALSE(source.empty()) << name;
    auto parsed = ChatTemplate::Parse(source, golden_["bos"].get<std::string>(), golden_["eos"].get<std::string>());
    EXPECT_TRUE(parsed.ok()) << name << ": " << parsed.status();
    return *std::move(parsed);
  }

  nlohmann::json golden_;
  std::vector<Chat> chats_;
};

TEST_F(TemplateGolden, EveryConversationIsRenderedOrRefusedAsTheReferenceDoes) {
  ASSERT_EQ(chats_.size(), 73u);
  ASSERT_GE(golden_["rendered"].size(), 20u);
  for (const auto& [name, rendered] : golden_["rendered"].items()) {
    const ChatTemplate chat_template = Parsed(name);
    ASSERT_EQ(rendered.size(), chats_.size());
    for (size_t i = 0; i < chats_.size(); ++i) {
      const auto text = chat_template.Render(chats_[i]);
      if (rendered[i].is_null()) {
        EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << name << ", conversation " << i;
      } else {
        ASSERT_TRUE(text.ok()) << name << ", conversation " << i << ": " << text.status();
        EXPECT_EQ(*text, rendered[i].get<std::string>()) << name << ", conversation " << i;
      }
    }
  }
}

// What the reference renders without the newest message of a user or tool, or, where it never writes such, without one
// that instructs.
TEST_F(TemplateGolden, AChatIsRefusedWhereTheReferenceLeavesOutWhatItSays) {
  const std::shared_ptr<const ModelFile> file = *ModelOfTokenizerJson(kBytesOnly);
  const std::shared_ptr<const Tokenizer> tokenizer = *Tokenizer::FromModel(*file);
  std::map<std::string, std::vector<size_t>> refused;
  for (const auto& [name, rendered] : golden_["rendered"].items()) {
    const ChatTemplate chat_template = Parsed(name);
    for (size_t i = 0; i < chats_.size(); ++i) {
      const auto ids = chat_template.Encode(*tokenizer, chats_[i]);
      if (!rendered[i].is_null() && absl::IsInvalidArgument(ids.status())) refused[name].push_back(i);
    }
  }
  EXPECT_EQ(refused, (std::map<std::string, std::vector<size_t>>{{"constructs", {12, 13, 27, 35, 65}},
                                                                 {"mistral", {7, 9, 10, 13, 22, 23, 26, 33, 59, 61}}}));
}

// The reference writes nothing of it.
TEST_F(TemplateGolden, ADeveloperMessageIsASystemOneWhereATemplateKnowsOnlyThese) {
  const std::shared_ptr<const ModelFile> file = *ModelOfTokenizerJson(kBytesOnly);
  const std::shared_ptr<const Tokenizer> tokenizer = *Tokenizer::FromModel(*file);
  Chat developer = chats_[23], system = developer;
  ASSERT_EQ(developer.messages[0].role, "developer");
  system.messages[0].role = "system";
  for (const char* name : {"command_r", "deepseek", "deepseek_text", "phi3", "qwen2_5", "qwen3"}) {
    const ChatTemplate chat_template = Parsed(name);
    const auto ids = chat_template.Encode(*tokenizer, developer);
    ASSERT_TRUE(ids.ok()) << name << ": " << ids.status();
    EXPECT_EQ(*ids, *chat_template.Encode(*tokenizer, system)) << name;
    EXPECT_NE(*chat_template.Render(system), golden_["rendered"][name][23].get<std::string>()) << name;
  }
}

TEST_F(TemplateGolden, EachTemplateSaysHowItsModelCallsTools) {
  const std::shared_ptr<const ModelFile> file = *ModelOfTokenizerJson(kBytesOnly);
  const std::shared_ptr<const Tokenizer> tokenizer = *Tokenizer::FromModel(*file);
  std::map<std::string, std::string> forms;
  for (const auto& [name, rendered] : golden_["rendered"].items()) {
    forms[name] = Parsed(name).ToolFormat(*tokenizer, /*words=*/"");
  }
  const char* const kCommandR = "json Action: ```json\n[\n    {\"name\": \"NAME\", \"arguments\": {}}\n]\n```";
  EXPECT_EQ(forms, (std::map<std::string, std::string>{
                       {"asking_arguments", ""},
                       {"chatml", "hermes"},
                       {"command_r", kCommandR},
                       {"constructs", "hermes"},
                       {"deepseek", ""},
                       {"deepseek_text", ""},
                       {"falcon", "hermes"},
                       {"functionary", ""},
                       {"gemma2", "hermes"},
                       {"gemma3", "hermes"},
                       {"llama2", "hermes"},
                       {"llama3", "hermes"},
                       {"llama3_1", "llama3"},
                       {"mistral", "hermes"},
                       {"mistral_tools", R"(json [TOOL_CALLS][{"name": "NAME", "arguments": {}}])"},
                       {"phi3", "hermes"},
                       {"qwen2_5", "hermes"},
                       {"qwen3", "hermes"},
                       {"smollm", "hermes"},
                       {"written_arguments", ""}}));
}

TEST_F(TemplateGolden, EveryTemplateOfTheFolderIsCompared) {
  std::set<std::string> files, rendered;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden/templates"))
    files.insert(entry.path().stem());
  for (const auto& [name, texts] : golden_["rendered"].items()) rendered.insert(name);
  EXPECT_EQ(files, rendered);
}

}  // namespace
}  // namespace runahead
