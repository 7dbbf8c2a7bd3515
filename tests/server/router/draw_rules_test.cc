#include "server/router/draw_rules.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

class DrawRulesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = absl::StrCat(::testing::TempDir(), "/draw_rules_test.", getpid(), ".gguf");
    ASSERT_TRUE(WriteSyntheticGguf(SyntheticModel(), path).ok());
    const auto file = OpenGguf(path);
    ASSERT_TRUE(file.ok()) << file.status();
    tokenizer_ = *Tokenizer::FromModel(**file);
    model_.vocabulary_size = static_cast<int32_t>(tokenizer_->vocab_size());
    std::filesystem::remove(path);
  }
  std::vector<int32_t> IdsOf(const std::string& text) { return *tokenizer_->Encode(text, {.add_bos = false}); }

  std::shared_ptr<const Tokenizer> tokenizer_;
  ModelInfo model_;
};

TEST_F(DrawRulesTest, AreThereWhereSomethingIsForbidden) {
  v1::GenerateRequest request;
  EXPECT_FALSE(HasDrawRules(request));
  request.mutable_stop()->set_min_tokens(0);
  request.mutable_stop()->set_max_tokens(5);
  EXPECT_FALSE(HasDrawRules(request));
  request.mutable_stop()->set_min_tokens(1);
  EXPECT_TRUE(HasDrawRules(request));
  request.mutable_stop()->clear_min_tokens();
  request.mutable_structure()->set_json_object(true);
  EXPECT_TRUE(HasDrawRules(request));
}

TEST_F(DrawRulesTest, TheEndsAreTheRequestsAndTheModels) {
  v1::GenerateRequest request;
  request.mutable_stop()->set_min_tokens(4);
  request.mutable_stop()->add_stop_ids(9);
  request.mutable_stop()->set_ignore_eos(true);
  const auto rules = ResolveDrawRules(request, *tokenizer_, model_);
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_EQ(rules->min_tokens(), 4);
  std::vector<int32_t> ends = {9};
  ends.insert(ends.end(), tokenizer_->end_ids().begin(), tokenizer_->end_ids().end());
  EXPECT_THAT(rules->end_ids(), ::testing::ElementsAreArray(ends));
  model_.vocabulary_size = tokenizer_->end_ids().front();
  EXPECT_THAT(ResolveDrawRules(request, *tokenizer_, model_)->end_ids(), ::testing::ElementsAre(9))
      << "none that the model has no row for";
}

TEST_F(DrawRulesTest, ABadWordIsForbiddenAsItStandsAndBehindASpace) {
  v1::GenerateRequest request;
  request.mutable_stop()->add_bad_words("word");
  const auto rules = ResolveDrawRules(request, *tokenizer_, model_);
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_TRUE(rules->end_ids().empty());
  ASSERT_EQ(rules->bad_ids_size(), 2);
  EXPECT_THAT(rules->bad_ids(0).ids(), ::testing::ElementsAreArray(IdsOf("word")));
  EXPECT_THAT(rules->bad_ids(1).ids(), ::testing::ElementsAreArray(IdsOf(" word")));
  EXPECT_GE(DrawRulesBytes(*rules), 3 * static_cast<int64_t>(IdsOf("word").size()));
}

TEST_F(DrawRulesTest, ABadWordOfOtherTokensThanTheModelsIsRefused) {
  v1::GenerateRequest request;
  request.mutable_stop()->add_bad_words("a");
  model_.vocabulary_size = IdsOf("a")[0];
  const absl::Status status = ResolveDrawRules(request, *tokenizer_, model_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(BlamedField(status), "stop.bad_words[0]");
}

// Of a vocabulary that has no token for a text, not even an unknown one.
TEST(DrawRules, ABadWordWithoutTokensIsRefused) {
  Vocabulary vocabulary;
  vocabulary.model = TokenModel::kPieceBpe;
  vocabulary.tokens = {{"</s>", TokenKind::kControl}, {"x", TokenKind::kNormal}, {" ", TokenKind::kNormal}};
  vocabulary.byte_ids.fill(-1);
  const std::shared_ptr<const Tokenizer> tokenizer = *Tokenizer::FromVocabulary(vocabulary);
  ModelInfo model;
  model.vocabulary_size = 3;
  v1::GenerateRequest request;
  request.mutable_stop()->add_bad_words("y");
  const absl::Status status = ResolveDrawRules(request, *tokenizer, model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlamedField(status), "stop.bad_words[0]");
}

TEST_F(DrawRulesTest, AStructureGoesAlongWithTheEndsThatItNeeds) {
  v1::GenerateRequest request;
  request.mutable_structure()->set_regex("a+");
  const auto rules = ResolveDrawRules(request, *tokenizer_, model_);
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_EQ(rules->structure().regex(), "a+");
  EXPECT_EQ(rules->min_tokens(), 0);
  EXPECT_FALSE(rules->end_ids().empty());
}

}  // namespace
}  // namespace runahead
