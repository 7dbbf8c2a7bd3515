// The golden files of data/, read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/testing/exactness.h"
#include "tests/testing/model_fixture.h"

namespace runahead {

struct GoldenPrompt {
  std::vector<int32_t> ids;
  std::vector<std::pair<int32_t, float>> top10;  // after the prompt, falling
  std::vector<int32_t> greedy;
  std::vector<float> margins;  // first minus second logit at each step
};

// What one token of a text was given.
struct GoldenScore {
  float logprob = 0;
  float largest = 0;                                 // magnitude of a logit there
  std::vector<std::pair<int32_t, float>> likeliest;  // ids and log probabilities, falling
};

struct GoldenScores {
  std::vector<std::string> flags;  // of make_synthetic_gguf; none: the quick-start model
  std::vector<int32_t> ids;
  std::vector<GoldenScore> scores;  // of ids[1:]
};

struct GoldenCheckpoint {
  std::vector<std::string> flags;  // of make_synthetic_gguf
  std::vector<GoldenPrompt> prompts;
};

// Of a text whose KV is kept in fewer bits. The prompt is prefilled without quantisation.
struct GoldenPerplexity {
  std::vector<int32_t> prompt;
  std::vector<int32_t> forced;       // after it: each is decoded, and the step gives the logits of the one behind it
  int group = 0;                     // KvQuant::group
  std::map<int, double> perplexity;  // of forced[1:], by the bits of KV: 4, 8, and 16 for none of it
};

// How far llama.cpp's logits are from transformers' in f32 on the ids of GoldenPerplexity, all but the last.
struct GoldenDivergence {
  double mean = 0;
  double percentile_99 = 0;
};

// Blocks of a weight type and what the gguf package makes of them.
struct GoldenBlocks {
  std::string type;  // WeightBlock::name
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

std::vector<GoldenPrompt> ReadGoldenPrompts();          // data/generate.json: the quick-start model
std::vector<GoldenCheckpoint> ReadGoldenCheckpoints();  // data/tiny.json
GoldenPerplexity ReadGoldenPerplexity();                // data/perplexity.json: the quick-start model
GoldenDivergence ReadGoldenDivergence();                // data/divergence.json: the quick-start model
std::vector<GoldenScores> ReadGoldenScores();           // data/scores.json: the quick-start model first
std::vector<GoldenBlocks> ReadGoldenSuperblocks();      // data/superblocks.json
// A text and its ids in Gemma's vocabulary.
struct GoldenText {
  std::string text;
  bool with_bos = false;
  std::vector<int32_t> ids;
};
std::vector<GoldenPrompt> ReadGemmaPrompts();  // data/gemma3.json
std::vector<GoldenText> ReadGemmaTexts();      // data/gemma3.json
// Path of gemma3-270m, "" where the tests run without it.
std::string GemmaModelPath();
// Path of the quick-start model, "" where the tests run without it.
std::string QuickStartModelPath();

// Logits of the ten by the rule of f32 (exactness.h), and no other one is larger.
void ExpectTop10(const std::vector<float>& logits, const GoldenPrompt& prompt);
// f32: the own greedy continuation, prefill then decode steps: every token is the golden one.
void ExpectGreedy(const LoadedModel& loaded, const GoldenPrompt& prompt);
// Teacher-forced on the golden tokens: adds its steps to `rule`.
void RunForced(const LoadedModel& loaded, const GoldenPrompt& prompt, TokenRule& rule);

}  // namespace runahead
