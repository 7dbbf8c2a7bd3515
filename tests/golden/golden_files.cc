#include "tests/golden/golden_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace runahead {
namespace {

nlohmann::json Read(const std::string& name) {
  std::ifstream in("tests/golden/data/" + name);
  RUNAHEAD_CHECK(in.good());
  return nlohmann::json::parse(in);
}

std::vector<GoldenPrompt> PromptsOf(const nlohmann::json& json) {
  std::vector<GoldenPrompt> prompts;
  for (const auto& entry : json.at("prompts")) {
    GoldenPrompt& prompt = prompts.emplace_back();
    prompt.ids = entry.at("ids").get<std::vector<int32_t>>();
    for (const auto& top : entry.at("top10")) prompt.top10.emplace_back(top.at("id"), top.at("logit"));
    prompt.greedy = entry.at("greedy").get<std::vector<int32_t>>();
    prompt.margins = entry.at("margins").get<std::vector<float>>();
  }
  return prompts;
}

}  // namespace

std::vector<GoldenPrompt> ReadGoldenPrompts() {
  return PromptsOf(Read("generate.json"));
}

std::vector<GoldenCheckpoint> ReadGoldenCheckpoints() {
  std::vector<GoldenCheckpoint> checkpoints;
  const nlohmann::json file = Read("tiny.json");
  for (const auto& entry : file.at("checkpoints")) {
    checkpoints.push_back({entry.at("flags").get<std::vector<std::string>>(), PromptsOf(entry)});
  }
  return checkpoints;
}

GoldenPerplexity ReadGoldenPerplexity() {
  const nlohmann::json file = Read("perplexity.json");
  GoldenPerplexity golden;
  golden.prompt = file.at("ids").at("prompt").get<std::vector<int32_t>>();
  golden.forced = file.at("ids").at("forced").get<std::vector<int32_t>>();
  golden.group = file.at("group").get<int>();
  for (const auto& [bits, value] : file.at("perplexity").items()) golden.perplexity[std::stoi(bits)] = value;
  return golden;
}

GoldenDivergence ReadGoldenDivergence() {
  const nlohmann::json file = Read("divergence.json").at("llama_cpp");
  return {file.at("mean").get<double>(), file.at("percentile_99").get<double>()};
}

std::vector<GoldenScores> ReadGoldenScores() {
  std::vector<GoldenScores> texts;
  const nlohmann::json file = Read("scores.json");
  for (const auto& entry : file.at("texts")) {
    GoldenScores& text = texts.emplace_back();
    text.flags = entry.at("flags").get<std::vector<std::string>>();
    text.ids = entry.at("ids").get<std::vector<int32_t>>();
    for (const auto& score : entry.at("scores")) {
      text.scores.push_back({.logprob = score.at(0).get<float>(),
                             .largest = score.at(1).get<float>(),
                             .likeliest = score.at(2).get<std::vector<std::pair<int32_t, float>>>()});
    }
  }
  return texts;
}

std::vector<GoldenBlocks> ReadGoldenSuperblocks() {
  std::vector<GoldenBlocks> all;
  const nlohmann::json file = Read("superblocks.json");
  for (const auto& [type, entry] : file.items()) {
    GoldenBlocks& blocks = all.emplace_back();
    blocks.type = type;
    const std::string hex = entry.at("blocks");
    for (size_t i = 0; i < hex.size(); i += 2) {
      blocks.bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    blocks.values = entry.at("values").get<std::vector<float>>();
  }
  return all;
}

std::vector<GoldenPrompt> ReadGemmaPrompts() {
  return PromptsOf(Read("gemma3.json"));
}

std::vector<GoldenText> ReadGemmaTexts() {
  std::vector<GoldenText> texts;
  const nlohmann::json file = Read("gemma3.json");
  for (const char* part : {"strings", "prompts"}) {
    for (const auto& entry : file.at(part)) {
      texts.push_back({.text = entry.at("text"),
                       .with_bos = std::string(part) == "prompts",
                       .ids = entry.at("ids").get<std::vector<int32_t>>()});
    }
  }
  return texts;
}

std::string GemmaModelPath() {
  const char* path = std::getenv("RUNAHEAD_TEST_GEMMA");
  return path == nullptr ? "" : path;
}

std::string QuickStartModelPath() {
  const char* path = std::getenv("RUNAHEAD_TEST_MODEL");
  return path == nullptr ? "" : path;
}

void ExpectTop10(const std::vector<float>& logits, const GoldenPrompt& prompt) {
  double largest = 0;
  for (const auto& [id, logit] : prompt.top10) largest = std::max<double>(largest, std::abs(logit));
  const double tolerance = RowTolerance(largest);
  std::vector<bool> listed(logits.size());
  for (const auto& [id, logit] : prompt.top10) {
    listed.at(id) = true;
    EXPECT_NEAR(logits[id], logit, tolerance) << "token " << id;
  }
  for (size_t id = 0; id < logits.size(); ++id) {
    ASSERT_TRUE(listed[id] || logits[id] <= prompt.top10.back().second + tolerance) << "token " << id;
  }
}

void ExpectGreedy(const LoadedModel& loaded, const GoldenPrompt& prompt) {
  SequenceRunner runner(loaded, static_cast<int64_t>(prompt.ids.size() + prompt.greedy.size()));
  std::vector<float> logits = runner.Append(prompt.ids, /*batch_invariant=*/false, /*all_logits=*/false)[0];
  ExpectTop10(logits, prompt);
  for (size_t step = 0; step < prompt.greedy.size(); ++step) {
    const Top top = TopOf(logits);
    ASSERT_EQ(top.id, prompt.greedy[step]) << "step " << step << ", margin " << prompt.margins[step];
    // A margin is the difference of two logits.
    EXPECT_NEAR(top.margin, prompt.margins[step], 2 * RowTolerance(logits[top.id])) << "step " << step;
    logits = runner.Append({top.id}, /*batch_invariant=*/true, true)[0];
  }
}

void RunForced(const LoadedModel& loaded, const GoldenPrompt& prompt, TokenRule& rule) {
  SequenceRunner runner(loaded, static_cast<int64_t>(prompt.ids.size() + prompt.greedy.size()));
  std::vector<float> logits = runner.Append(prompt.ids, /*batch_invariant=*/false, /*all_logits=*/false)[0];
  for (size_t step = 0; step < prompt.greedy.size(); ++step) {
    rule.Add(TopOf(logits).id, {prompt.greedy[step], prompt.margins[step]});
    logits = runner.Append({prompt.greedy[step]}, /*batch_invariant=*/true, true)[0];
  }
}

}  // namespace runahead
