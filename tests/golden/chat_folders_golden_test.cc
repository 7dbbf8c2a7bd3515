// Chat templates and tokens of folders that have them in one file or another, against transformers
// (make_chat_folders.py).
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/tokenizer/chat_template.h"
#include "tests/testing/json_chat.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

nlohmann::json FromFile(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in) << path << " cannot be read; the test runs in the repository's root";
  return nlohmann::json::parse(in);
}

void Write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

// A folder with weights, a vocabulary, and these files beside them; its tokenizer.json lacks what is named.
std::string FolderOf(const nlohmann::json& files, const nlohmann::json& without = nlohmann::json::array()) {
  const std::filesystem::path folder = testing::TempDir() + "chat_folders_golden";
  std::filesystem::remove_all(folder);
  std::filesystem::copy("tests/golden/data/layouts/own_head", folder);
  nlohmann::json tokenizer = FromFile("tests/golden/data/tokenizers/llama2.json")["tokenizer"];
  for (const nlohmann::json& name : without) tokenizer.erase(name.get<std::string>());
  Write(folder / "tokenizer.json", tokenizer.dump());
  for (const auto& [name, text] : files.items()) Write(folder / name, text.get<std::string>());
  return folder;
}

TEST(ChatFoldersGolden, EveryFolderIsRenderedOrRefusedAsTheReferenceDoes) {
  const nlohmann::json golden = FromFile("tests/golden/data/chat_folders.json");
  ASSERT_EQ(golden["folders"].size(), 30u);
  for (const nlohmann::json& folder : golden["folders"]) {
    const auto file = OpenModelFile(FolderOf(folder["files"]));
    ASSERT_TRUE(file.ok()) << file.status() << " of " << folder;
    const auto tokenizer = Tokenizer::FromModel(**file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status() << " of " << folder;
    const auto chat_template = ChatTemplate::FromModel(**file, **tokenizer);
    for (const char* form : {"plain", "tools"}) {
      nlohmann::json chat = {{"messages", golden["messages"]}};
      if (std::string(form) == "tools") chat["tools"] = golden["tools"];
      const absl::StatusOr<std::string> text =
          chat_template.ok() ? chat_template->Render(ChatFromJson(chat.dump())) : chat_template.status();
      if (folder[form].is_null()) {
        EXPECT_EQ(text.status().code(), absl::StatusCode::kFailedPrecondition) << form << " of " << folder;
      } else {
        ASSERT_TRUE(text.ok()) << text.status() << ", " << form << " of " << folder;
        EXPECT_EQ(*text, folder[form].get<std::string>()) << form << " of " << folder;
      }
    }
  }
}

TEST(ChatFoldersGolden, IdsAreThoseOfTheClassThatTheConfigurationNames) {
  const nlohmann::json golden = FromFile("tests/golden/data/chat_folders.json");
  ASSERT_EQ(golden["classes"].size(), 17u);
  for (const nlohmann::json& folder : golden["classes"]) {
    const auto file = OpenModelFile(FolderOf(folder["files"], folder["without"]));
    ASSERT_TRUE(file.ok()) << file.status() << " of " << folder;
    const auto tokenizer = Tokenizer::FromModel(**file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status() << " of " << folder;
    const auto ids = (*tokenizer)->Encode(golden["text"].get<std::string>(), {.parse_special = true});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, folder["ids"].get<std::vector<int32_t>>()) << folder;
  }
}

}  // namespace
}  // namespace runahead
