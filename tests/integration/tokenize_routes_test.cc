// Every way to a prompt is one way: what Tokenize gives, sent back as token ids, is the prompt that Generate makes of
// the same text or chat. Over all golden vocabularies, by the service and by the command line.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "server/rpc/status.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/router_fixture.h"
#include "tests/testing/test_process.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

using nlohmann::json;
using testing::TestProcess;

constexpr char kFolder[] = "tests/golden/data/tokenizers/";
constexpr const char* kVocabularies[] = {"gpt2",   "opt",     "llama3", "qwen2", "smollm",  "falcon",
                                         "llama2", "mistral", "phi3",   "gemma", "unigram", "unigram_unknown"};
constexpr char kTemplate[] =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %} [answer] {% endif %}";

json ReadJson(const std::string& name) {
  std::ifstream in(kFolder + name + ".json");
  EXPECT_TRUE(in) << kFolder << name << ".json cannot be read; the test runs in the repository's root";
  return json::parse(in);
}

class TokenizeRoutes : public testing::RouterFixture, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    RouterFixture::SetUp();
    const json golden = ReadJson(GetParam());
    begins_ = !golden["begin"].empty();
    for (const json& token : golden["tokenizer"]["added_tokens"]) {
      if (token["special"]) names_.push_back(token["content"]);
    }
    GgufBuilder builder;
    builder.AddString("general.architecture", "llama");
    builder.AddString("tokenizer.huggingface.json", golden["tokenizer"].dump());
    builder.AddString("tokenizer.chat_template", kTemplate);
    path_ = absl::StrCat(::testing::TempDir(), "/tokenize_routes_", getpid(), ".gguf");
    std::ofstream(path_, std::ios::binary) << builder.Build();
    const auto file = OpenModelFile(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    tokenizer_ = *Tokenizer::FromModel(**file);
    chat_template_ = ChatTemplate::FromModel(**file, *tokenizer_);
    ASSERT_TRUE(chat_template_.ok()) << chat_template_.status();
    model_.vocabulary_size = static_cast<int>(tokenizer_->vocab_size());
    Start({.prefill = 1});
    IdsOfText("a");  // the connection is there, and calls that do not wait for it find it
  }
  void TearDown() override {
    RouterFixture::TearDown();
    std::filesystem::remove(path_);
  }

  // The prompt that a worker was given for the request.
  std::vector<int32_t> Prompted(v1::GenerateRequest request) {
    request.mutable_stop()->set_max_tokens(1);
    const testing::Got got = Generate(request);
    EXPECT_TRUE(got.status.ok()) << got.status;
    return Started();
  }
  // That of the next request that was started.
  std::vector<int32_t> Started() {
    const v1::StartJob start = prefill_[0]->AwaitStarts(++started_).back();
    return {start.ids().begin(), start.ids().end()};
  }

  std::vector<int32_t> Ids(const v1::TokenizeRequest& request) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::TokenizeResponse response;
    const absl::Status status = FromGrpcStatus(stub_->Tokenize(&context, request, &response));
    EXPECT_TRUE(status.ok()) << status;
    return {response.ids().begin(), response.ids().end()};
  }
  std::vector<int32_t> IdsOfText(const std::string& text, bool special = false, bool without_begin = false) {
    v1::TokenizeRequest request;
    request.set_text(text);
    request.set_special(special);
    request.set_without_begin(without_begin);
    return Ids(request);
  }
  std::string TextOf(const std::vector<int32_t>& ids, bool special) {
    grpc::ClientContext context;
    v1::DetokenizeRequest request;
    request.mutable_ids()->Assign(ids.begin(), ids.end());
    request.set_special(special);
    v1::DetokenizeResponse response;
    const absl::Status status = FromGrpcStatus(stub_->Detokenize(&context, request, &response));
    EXPECT_TRUE(status.ok()) << status;
    return response.text();
  }

  static v1::GenerateRequest OfIds(const std::vector<int32_t>& ids) {
    v1::GenerateRequest request;
    request.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
    return request;
  }
  static v1::GenerateRequest OfText(const std::string& text) {
    v1::GenerateRequest request;
    request.set_prompt(text);
    return request;
  }

  std::string Run(std::vector<std::string> args) {
    args.insert(args.begin(), RUNAHEAD_BINARY);
    TestProcess process(args);
    EXPECT_EQ(process.Wait(), 0) << process.err();
    return process.out();
  }

  bool IsControl(int32_t id) const { return tokenizer_->IsSpecial(id) && tokenizer_->TokenBytes(id) != "<unk>"; }

  std::string path_;
  std::vector<std::string> names_;  // of control tokens
  bool begins_ = false;
  size_t started_ = 0;
};

// All golden texts, each of one vocabulary: with all of them each would take minutes.
TEST_P(TokenizeRoutes, IdsOfATextAreThePromptOfIt) {
  const std::vector<std::string> texts = ReadJson("texts")["texts"];
  const auto own = std::find(std::begin(kVocabularies), std::end(kVocabularies), std::string(GetParam()));
  for (auto i = static_cast<size_t>(own - std::begin(kVocabularies)); i < texts.size(); i += std::size(kVocabularies)) {
    SCOPED_TRACE(json(texts[i]).dump());
    const std::vector<int32_t> ids = IdsOfText(texts[i]);
    EXPECT_EQ(TextOf(ids, /*special=*/false), tokenizer_->Decode(ids, /*skip_special=*/true));
    EXPECT_EQ(TextOf(ids, /*special=*/true), tokenizer_->Decode(ids, /*skip_special=*/false));
    if (ids.empty() || texts[i].empty()) continue;  // no prompt
    EXPECT_EQ(Prompted(OfText(texts[i])), ids);
    EXPECT_EQ(Prompted(OfIds(ids)), ids);
    EXPECT_EQ(ids.front() == tokenizer_->bos_id(), begins_);
    const std::vector<int32_t> bare = IdsOfText(texts[i], /*special=*/false, /*without_begin=*/true);
    EXPECT_EQ(bare, std::vector<int32_t>(ids.begin() + (begins_ ? 1 : 0), ids.end()));
  }
}

TEST_P(TokenizeRoutes, NamesOfSpecialTokensAreTextUnlessTheyAreAskedFor) {
  for (const std::string& name : names_) {
    const std::string text = "a " + name + "b" + name;
    SCOPED_TRACE(text);
    const std::vector<int32_t> ids = IdsOfText(text);
    EXPECT_EQ(std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return IsControl(id); }), begins_ ? 1 : 0);
    EXPECT_EQ(Prompted(OfText(text)), ids);
    EXPECT_EQ(Prompted(OfIds(ids)), ids);
    const std::vector<int32_t> special = IdsOfText(text, /*special=*/true);
    EXPECT_EQ(
        std::count_if(special.begin(), special.end(), [&](int32_t id) { return tokenizer_->TokenBytes(id) == name; }),
        2 + (begins_ && tokenizer_->TokenBytes(*tokenizer_->bos_id()) == name ? 1 : 0));
    EXPECT_EQ(Prompted(OfIds(special)), special);
  }
}

TEST_P(TokenizeRoutes, ABeginThatTheTextNamesIsThereOnce) {
  if (!tokenizer_->bos_id()) {
    EXPECT_EQ(IdsOfText("a b", /*special=*/true), IdsOfText("a b", /*special=*/true, /*without_begin=*/true));
    return;
  }
  const std::string begin(tokenizer_->TokenBytes(*tokenizer_->bos_id()));
  const std::vector<int32_t> ids = IdsOfText(begin + "a b", /*special=*/true);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *tokenizer_->bos_id()), 1);
}

TEST_P(TokenizeRoutes, IdsOfAChatAreThePromptOfIt) {
  v1::ChatMessages chat;
  for (const std::string& name : names_) {
    v1::ChatMessage& message = *chat.add_messages();
    message.set_role(chat.messages_size() % 2 == 1 ? "user" : "assistant");
    message.set_content("Größe " + name + " ");
  }
  for (const bool continued : {false, true}) {
    v1::TokenizeRequest request;
    *request.mutable_chat() = chat;
    request.mutable_chat()->set_continue_final_message(continued);
    const std::vector<int32_t> ids = Ids(request);
    v1::GenerateRequest generate;
    *generate.mutable_chat() = request.chat();
    EXPECT_EQ(Prompted(generate), ids);
    EXPECT_EQ(Prompted(OfIds(ids)), ids);
    EXPECT_LE(std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return IsControl(id); }), 1);
  }
}

TEST_P(TokenizeRoutes, APromptThatEndsWithTextAndItsAnswerAreOneText) {
  const std::vector<int32_t> whole = IdsOfText("The a  b c");
  size_t begin = IdsOfText("The a").size();
  while (begin + 1 < whole.size() && tokenizer_->TokenBytes(whole[begin])[0] != ' ') ++begin;  // words may span the cut
  const std::vector<int32_t> prompt(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(begin));
  const std::vector<int32_t> answer(whole.begin() + static_cast<std::ptrdiff_t>(begin), whole.end());
  for (const auto* workers : {&prefill_, &decode_}) {
    (*workers)[0]->Change([&](testing::FakeBehaviour& b) {
      b.token = [answer](int64_t index) { return answer[static_cast<size_t>(index)]; };
    });
  }
  v1::GenerateRequest request = OfIds(prompt);
  request.mutable_stop()->set_max_tokens(static_cast<int32_t>(answer.size()));
  request.mutable_stop()->set_ignore_eos(true);
  const testing::Got got = Generate(request);
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(TextOf(prompt, /*special=*/false) + got.text(), TextOf(whole, /*special=*/false));
}

TEST_P(TokenizeRoutes, TheCommandLineSaysTheSameByFileAndByRouter) {
  const std::string text = "The Größe " + names_[0] + " 12 ", router = server_->address();
  const std::vector<int32_t> ids = IdsOfText(text);
  const std::string wanted = json{{"ids", ids}}.dump() + "\n";
  EXPECT_EQ(Run({"tokenize", "--router", router, "--json", text}), wanted);
  EXPECT_EQ(Run({"tokenize", "--model", path_, "--json", text}), wanted);
  Run({"generate", "--router", router, "--max-tokens", "1", "--token-ids", absl::StrJoin(ids, ",")});
  EXPECT_EQ(Started(), ids);
  Run({"generate", "--router", router, "--max-tokens", "1", "--prompt", text});
  EXPECT_EQ(Started(), ids);

  const std::vector<std::string> chat = {"--message",           "user:" + text,        "--message",
                                         "assistant:a " + text, "--template-variable", "continue_final_message=true"};
  const auto with_chat = [&](std::vector<std::string> args) {
    args.insert(args.end(), chat.begin(), chat.end());
    return Run(args);
  };
  const std::string of_chat = with_chat({"tokenize", "--router", router, "--json"});
  EXPECT_EQ(with_chat({"tokenize", "--model", path_, "--json"}), of_chat);
  with_chat({"generate", "--router", router, "--max-tokens", "1"});
  EXPECT_EQ(Started(), json::parse(of_chat)["ids"].get<std::vector<int32_t>>());

  const std::string decoded = json{{"text", tokenizer_->Decode(ids, /*skip_special=*/true)}}.dump() + "\n";
  EXPECT_EQ(Run({"detokenize", "--router", router, "--json", absl::StrJoin(ids, ",")}), decoded);
  EXPECT_EQ(Run({"detokenize", "--model", path_, "--json", absl::StrJoin(ids, ",")}), decoded);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenizeRoutes, ::testing::ValuesIn(kVocabularies),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace runahead
