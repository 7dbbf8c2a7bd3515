#include "worker/format/hf_unread_keys.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "worker/format/quoted.h"

namespace runahead {
namespace {

constexpr size_t kMostNamed = 20;  // keys are up to the file

// Keys that change nothing of what a trained model computes, or that something else of ours reads.
constexpr absl::string_view kHarmless[] = {
    // What the model is, and who wrote the file.
    "_name_or_path", "architectures", "auto_map", "model_type", "transformers_version", "_commit_hash",
    "is_llama_config", "unsloth_version", "unsloth_fixed", "transformers.js_config",
    // The height of the embedding is the vocabulary's size. The folder's reader takes the ids of ends.
    "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
    // The form of weights and arithmetic: tensors say theirs, --dtype decides ours.
    "torch_dtype", "dtype", "use_bfloat16", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
    "scale_attn_weights", "pretraining_tp", "_attn_implementation",
    // How it was trained.
    "initializer_range", "init_std", "attention_dropout", "hidden_dropout", "dropout", "activation_dropout",
    "residual_dropout", "embedding_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop", "classifier_dropout",
    "layerdrop", "gradient_checkpointing",
    // How transformers generates and answers, and what it keeps of models of other kinds.
    "use_cache", "cache_implementation", "prefix", "output_attentions", "output_hidden_states", "return_dict",
    "torchscript", "chunk_size_feed_forward", "problem_type", "id2label", "label2id", "num_labels",
    "task_specific_params", "tokenizer_class", "is_encoder_decoder", "is_decoder", "add_cross_attention",
    "cross_attention_hidden_size", "tie_encoder_decoder", "pruned_heads", "finetuning_task", "tf_legacy_loss",
    "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id",
    "temperature", "top_k", "top_p", "typical_p", "do_sample", "max_length", "min_length", "num_beams",
    "num_beam_groups", "num_return_sequences", "diversity_penalty", "early_stopping", "length_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "remove_invalid_values",
    "repetition_penalty", "return_dict_in_generate", "output_scores",
    // Beside a key that says it: the type has an older name, longrope is asked for elsewhere.
    "rope_scaling.type", "original_max_position_embeddings"};

bool IsHarmless(absl::string_view key) {
  return std::find(std::begin(kHarmless), std::end(kHarmless), key) != std::end(kHarmless);
}

}  // namespace

std::string UnreadHfKeysRemark(const ConfigObject& config, const std::string& path) {
  std::vector<std::string> named;
  size_t more = 0;
  for (const std::string& name : config.Unasked()) {
    if (IsHarmless(name)) continue;
    if (named.size() < kMostNamed) {
      named.push_back(Quoted(name));
    } else {
      ++more;
    }
  }
  if (named.empty()) return "";
  const std::string others = more == 0 ? "" : absl::StrCat(" and ", more, " others");
  return absl::StrCat(path, ": nothing reads the keys ", absl::StrJoin(named, ", "), others,
                      ": what they say has no effect");
}

}  // namespace runahead
