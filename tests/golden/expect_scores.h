// Scores of a prompt (prompt_logprobs) on a chain, against transformers'.
#pragma once

#include "tests/golden/golden_files.h"
#include "tests/testing/model_fixture.h"

namespace runahead {

// The prompt in one, two and three parts, each on a worker of its own: what every token was given, by the member whose
// part ends before it, and the likeliest others. By the rule of f32 (exactness.h): log probabilities are differences of
// logits. Two tokens that are nearer than that may change places.
void ExpectScores(const LoadedModel& loaded, const GoldenScores& text);

}  // namespace runahead
