#include "tests/golden/golden_files.h"

#include <gtest/gtest.h>

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

std::string QuickStartModelPath() {
  const char* path = std::getenv("RUNAHEAD_TEST_MODEL");
  return path == nullptr ? "" : path;
}

void ExpectTop10(const std::vector<float>& logits, const GoldenPrompt& prompt, float tolerance) {
  for (const auto& [id, logit] : prompt.top10) EXPECT_NEAR(logits[id], logit, tolerance) << "token " << id;
  // Nothing else is larger than the tenth.
  for (size_t id = 0; id < logits.size(); ++id) {
    bool listed = false;
    for (const auto& [top, logit] : prompt.top10) listed = listed || top == static_cast<int32_t>(id);
    ASSERT_TRUE(listed || logits[id] <= prompt.top10.back().second + tolerance) << "token " << id;
  }
}

void ExpectGreedy(const LoadedModel& loaded, const GoldenPrompt& prompt, float logit_tolerance) {
  SequenceRunner runner(loaded, static_cast<int64_t>(prompt.ids.size() + prompt.greedy.size()));
  std::vector<float> logits = runner.Append(prompt.ids, /*batch_invariant=*/false, /*all_logits=*/false)[0];
  ExpectTop10(logits, prompt, logit_tolerance);
  for (size_t step = 0; step < prompt.greedy.size(); ++step) {
    const Top top = TopOf(logits);
    ASSERT_EQ(top.id, prompt.greedy[step]) << "step " << step << ", margin " << prompt.margins[step];
    EXPECT_NEAR(top.margin, prompt.margins[step], 2 * logit_tolerance) << "step " << step;
    logits = runner.Append({top.id}, /*batch_invariant=*/true, true)[0];
  }
}

ForcedSteps RunForced(const LoadedModel& loaded, const GoldenPrompt& prompt) {
  SequenceRunner runner(loaded, static_cast<int64_t>(prompt.ids.size() + prompt.greedy.size()));
  std::vector<float> logits = runner.Append(prompt.ids, /*batch_invariant=*/false, /*all_logits=*/false)[0];
  ForcedSteps result;
  for (size_t step = 0; step < prompt.greedy.size(); ++step) {
    const bool same = TopOf(logits).id == prompt.greedy[step];
    ++result.steps;
    result.different += same ? 0 : 1;
    EXPECT_TRUE(same || prompt.margins[step] < 0.5f) << "step " << step << ", margin " << prompt.margins[step];
    logits = runner.Append({prompt.greedy[step]}, /*batch_invariant=*/true, true)[0];
  }
  return result;
}

}  // namespace runahead
