#include "client/generate/sampling_flags.h"

#include <CLI/CLI.hpp>

#include "client/base/typed_flags.h"

namespace runahead {

void SamplingFlags::AddTo(CLI::App& app) {
  app.option_defaults()->group("Sampling");
  AddNumber(app, "--temperature", &temperature, "0 takes the likeliest token always; up to 100 (default: 0)", "T");
  AddNumber(app, "--top-k", &top_k, "Choose among the K likeliest tokens; 0 is off (default: 0)", "K");
  AddNumber(app, "--top-p", &top_p, "Choose among the likeliest tokens of this total probability (default: 1)", "P");
  AddNumber(app, "--min-p", &min_p, "Leave out tokens below this share of the likeliest one's probability (default: 0)",
            "P");
  AddNumber(app, "--repetition-penalty", &repetition_penalty,
            "Divides the scores of tokens that stand in prompt or output (default: 1)", "R");
  AddNumber(app, "--presence-penalty", &presence_penalty,
            "Taken from the scores of tokens that stand in the output (default: 0)", "R");
  AddNumber(app, "--frequency-penalty", &frequency_penalty, "The same for each time that they stand there (default: 0)",
            "R");
  AddRepeated(app, "--logit-bias", &logit_bias,
              "Added to the score of a token id, -100 to 100, as in 50256=-100; may be repeated", "ID=VALUE");
  AddRepeated(app, "--bad-word", &bad_words, "A text that the output is not to have; may be repeated", "TEXT");
  AddNumber(app, "--seed", &seed, "Makes draws repeatable (default: the router draws one)", "N");
  app.option_defaults()->group("Stopping");
  AddNumber(app, "--max-tokens", &max_tokens, "Tokens to generate at most (default: 1024, or what the context leaves)",
            "N");
  AddNumber(app, "--min-tokens", &min_tokens, "Tokens before which nothing ends the output (default: 0)", "N");
  AddRepeated(app, "--stop", &stop, "End the output before this text; may be repeated", "TEXT");
  AddRepeated(app, "--stop-id", &stop_ids, "End the output at this token id; may be repeated", "ID");
  app.add_flag("--ignore-eos", ignore_eos, "Go on past the model's own end tokens");
  app.option_defaults()->group("Options");
  app.add_flag("--no-cache", no_cache,
               "Use nothing that decode workers keep of earlier requests, and leave nothing there");
}

void SamplingFlags::FillIn(v1::GenerateRequest& request) const {
  v1::SamplingParams& sampling = *request.mutable_sampling();
  if (temperature) sampling.set_temperature(*temperature);
  if (top_k) sampling.set_top_k(*top_k);
  if (top_p) sampling.set_top_p(*top_p);
  if (min_p) sampling.set_min_p(*min_p);
  if (repetition_penalty) sampling.set_repetition_penalty(*repetition_penalty);
  if (presence_penalty) sampling.set_presence_penalty(*presence_penalty);
  if (frequency_penalty) sampling.set_frequency_penalty(*frequency_penalty);
  if (seed) sampling.set_seed(*seed);
  sampling.mutable_logit_bias()->insert(logit_bias.begin(), logit_bias.end());
  v1::StopConditions& conditions = *request.mutable_stop();
  if (max_tokens) conditions.set_max_tokens(*max_tokens);
  if (min_tokens) conditions.set_min_tokens(*min_tokens);
  for (const std::string& text : stop) conditions.add_stop(text);
  for (const std::string& text : bad_words) conditions.add_bad_words(text);
  conditions.mutable_stop_ids()->Assign(stop_ids.begin(), stop_ids.end());
  conditions.set_ignore_eos(ignore_eos);
  request.set_no_cache(no_cache);
}

}  // namespace runahead
