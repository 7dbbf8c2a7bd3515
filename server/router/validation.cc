#include "server/router/validation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/router/answers_check.h"
#include "server/router/structure_check.h"
#include "server/rpc/schedule_proto.h"
#include "server/rpc/status.h"
#include "server/tokenizer/chat_template.h"

namespace runahead {
namespace {

constexpr int kMaxStopStrings = 16;
constexpr int kMaxStopBytes = 256;
constexpr int kMaxStopIds = 64;
constexpr int kMaxBadWords = 64;
constexpr int kMaxBadWordBytes = 256;
constexpr int kMaxBiases = 1024;
constexpr float kMaxBias = 100;

template <typename... Args>
absl::Status Invalid(const std::string& field, const Args&... description) {
  return InvalidField(field, absl::StrCat(description...));
}

template <typename... Args>
absl::Status OutOfRange(const std::string& field, const Args&... description) {
  return FieldError(absl::StatusCode::kOutOfRange, field, absl::StrCat(description...));
}

absl::Status CheckIds(const char* field, absl::Span<const int32_t> ids, const ModelInfo& model) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < model.vocabulary_size) continue;
    return OutOfRange(absl::StrCat(field, "[", i, "]"), ids[i], " is not in [0, ", model.vocabulary_size, ")");
  }
  return absl::OkStatus();
}

absl::Status InField(const std::string& field, const absl::Status& status) {
  return status.ok() ? status : InvalidField(field, status.message());
}

size_t TextBytes(const v1::ChatMessages& chat) {
  size_t bytes = ChatJsonBytes(chat);
  for (const v1::ChatMessage& message : chat.messages()) {
    bytes += message.content().size() + message.reasoning_content().size() + message.name().size() +
             message.tool_call_id().size();
  }
  return bytes;
}

// `tokens`, in front of which stands `least`, leave no room for an answer.
absl::Status TooLong(const std::string& field, absl::string_view least, int64_t tokens, const ModelInfo& model,
                     int64_t output = 1) {
  return OutOfRange(field, least, tokens, output == 0 ? " tokens" : " tokens, and at least 1 of output,",
                    " are more than the context of ", model.context_length, " tokens");
}

absl::Status CheckChatJsonSize(const v1::ChatMessages& chat) {
  const size_t bytes = ChatJsonBytes(chat);
  if (bytes <= kMaxChatJsonBytes) return absl::OkStatus();
  const char* field = !chat.tools().empty()                ? "chat.tools"
                      : !chat.template_variables().empty() ? "chat.template_variables"
                                                           : "chat.messages";
  return Invalid(field, bytes, " bytes of JSON in the chat are more than ", kMaxChatJsonBytes);
}

absl::Status CheckChatJson(const v1::ChatMessages& chat) {
  if (!chat.tools().empty()) RUNAHEAD_RETURN_IF_ERROR(InField("chat.tools", CheckJsonArray(chat.tools())));
  if (!chat.template_variables().empty()) {
    RUNAHEAD_RETURN_IF_ERROR(InField("chat.template_variables", CheckJsonObject(chat.template_variables())));
  }
  for (int i = 0; i < chat.messages_size(); ++i) {
    if (!chat.messages(i).has_tool_calls()) continue;
    RUNAHEAD_RETURN_IF_ERROR(
        InField(absl::StrCat("chat.messages[", i, "].tool_calls"), CheckJsonArray(chat.messages(i).tool_calls())));
  }
  return absl::OkStatus();
}

absl::Status CheckChat(const v1::ChatMessages& chat) {
  if (chat.messages().empty()) return Invalid("chat.messages", "at least one is needed");
  for (int i = 0; i < chat.messages_size(); ++i) {
    const std::string& role = chat.messages(i).role();
    if (IsKnownRole(role)) continue;
    // Not what it is instead: messages are logged, and that may be the text.
    return Invalid(absl::StrCat("chat.messages[", i, "].role"), "it is not system, developer, user, assistant or tool");
  }
  return CheckChatJson(chat);
}

absl::Status CheckInput(const v1::GenerateRequest& request, const ModelInfo& model) {
  switch (request.input_case()) {
    case v1::GenerateRequest::kPrompt:
      return request.prompt().empty() ? Invalid("prompt", "it is empty") : absl::OkStatus();
    case v1::GenerateRequest::kChat:
      return CheckChat(request.chat());
    case v1::GenerateRequest::kTokenIds:
      if (request.token_ids().ids().empty()) return Invalid("token_ids.ids", "at least one is needed");
      return CheckIds("token_ids.ids", request.token_ids().ids(), model);
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return Invalid("prompt", "one of prompt, chat and token_ids must be given");
}

absl::Status CheckBiases(const v1::SamplingParams& sampling, const ModelInfo& model) {
  const auto& biases = sampling.logit_bias();
  if (biases.size() > kMaxBiases) {
    return Invalid("sampling.logit_bias", biases.size(), " ids are more than ", kMaxBiases);
  }
  for (const auto& [id, bias] : biases) {
    if (id < 0 || id >= model.vocabulary_size) {
      return OutOfRange("sampling.logit_bias", id, " is not in [0, ", model.vocabulary_size, ")");
    }
    if (bias >= -kMaxBias && bias <= kMaxBias) continue;
    return Invalid(absl::StrCat("sampling.logit_bias[", id, "]"), bias, " is not in [-100, 100]");
  }
  return absl::OkStatus();
}

absl::Status CheckSampling(const v1::SamplingParams& s, const ModelInfo& model) {
  // Written so that a NaN fails every one of them.
  if (s.has_temperature() && !(s.temperature() >= 0 && s.temperature() <= 100)) {
    return Invalid("sampling.temperature", s.temperature(), " is not in [0, 100]");
  }
  if (s.has_top_k() && s.top_k() < 0) return Invalid("sampling.top_k", s.top_k(), " is not at least 0");
  if (s.has_top_p() && !(s.top_p() > 0 && s.top_p() <= 1)) {
    return Invalid("sampling.top_p", s.top_p(), " is not in (0, 1]");
  }
  if (s.has_min_p() && !(s.min_p() >= 0 && s.min_p() < 1)) {
    return Invalid("sampling.min_p", s.min_p(), " is not in [0, 1)");
  }
  if (s.has_repetition_penalty() && !(s.repetition_penalty() > 0 && s.repetition_penalty() <= 10)) {
    return Invalid("sampling.repetition_penalty", s.repetition_penalty(), " is not in (0, 10]");
  }
  if (s.has_presence_penalty() && !(s.presence_penalty() >= -2 && s.presence_penalty() <= 2)) {
    return Invalid("sampling.presence_penalty", s.presence_penalty(), " is not in [-2, 2]");
  }
  if (s.has_frequency_penalty() && !(s.frequency_penalty() >= -2 && s.frequency_penalty() <= 2)) {
    return Invalid("sampling.frequency_penalty", s.frequency_penalty(), " is not in [-2, 2]");
  }
  if (s.has_logprobs() && (s.logprobs() < 0 || s.logprobs() > 20)) {
    return Invalid("sampling.logprobs", s.logprobs(), " is not in [0, 20]");
  }
  return CheckBiases(s, model);
}

// Texts of `field`, so many at most, of one byte or more.
absl::Status CheckTexts(const std::string& field, const google::protobuf::RepeatedPtrField<std::string>& texts,
                        int most, int most_bytes) {
  if (texts.size() > most) return Invalid(field, texts.size(), " strings are more than ", most);
  for (int i = 0; i < texts.size(); ++i) {
    const auto bytes = static_cast<int64_t>(texts[i].size());
    if (bytes >= 1 && bytes <= most_bytes) continue;
    return Invalid(absl::StrCat(field, "[", i, "]"), bytes, " bytes are not in [1, ", most_bytes, "]");
  }
  return absl::OkStatus();
}

absl::Status CheckMinTokens(const v1::StopConditions& stop) {
  if (stop.min_tokens() < 0) return Invalid("stop.min_tokens", stop.min_tokens(), " is not at least 0");
  if (!stop.has_max_tokens() || stop.min_tokens() <= stop.max_tokens()) return absl::OkStatus();
  return Invalid("stop.min_tokens", stop.min_tokens(), " is more than max_tokens, which is ", stop.max_tokens());
}

absl::Status CheckStop(const v1::GenerateRequest& request, const ModelInfo& model) {
  const v1::StopConditions& stop = request.stop();
  if (stop.has_max_tokens() && stop.max_tokens() < LeastOutput(request)) {
    return Invalid("stop.max_tokens", stop.max_tokens(), " is not at least ", LeastOutput(request),
                   stop.max_tokens() == 0 ? ", as it is without prompt_logprobs" : "");
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckMinTokens(stop));
  RUNAHEAD_RETURN_IF_ERROR(CheckTexts("stop.stop", stop.stop(), kMaxStopStrings, kMaxStopBytes));
  RUNAHEAD_RETURN_IF_ERROR(CheckTexts("stop.bad_words", stop.bad_words(), kMaxBadWords, kMaxBadWordBytes));
  if (stop.stop_ids_size() > kMaxStopIds) {
    return Invalid("stop.stop_ids", stop.stop_ids_size(), " ids are more than ", kMaxStopIds);
  }
  return CheckIds("stop.stop_ids", stop.stop_ids(), model);
}

absl::Status CheckOutput(const v1::GenerateRequest& request, const ModelInfo& model) {
  if (request.output_ids().empty()) return absl::OkStatus();
  if (request.output_ids_size() >= model.context_length) {
    return Invalid("output_ids", request.output_ids_size(), " ids are not fewer than the context of ",
                   model.context_length, " tokens");
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckIds("output_ids", request.output_ids(), model));
  if (request.sampling().temperature() > 0 && !request.sampling().has_seed()) {
    return Invalid("sampling.seed", "output_ids are gone on with by the seed that drew them: `started` said it");
  }
  return absl::OkStatus();
}

absl::Status CheckExperiment(const v1::Experiment& experiment, const ModelInfo& model) {
  if (experiment.has_width() && experiment.width() < 1) {
    return Invalid("experiment.width", experiment.width(), " is not at least 1");
  }
  if (experiment.parts_size() > model.context_length) {
    return Invalid("experiment.parts", experiment.parts_size(), " parts are more than the context of ",
                   model.context_length, " tokens");
  }
  if (!v1::Schedule_IsValid(experiment.schedule())) {
    return Invalid("experiment.schedule", static_cast<int>(experiment.schedule()), " is not a schedule known here");
  }
  return absl::OkStatus();
}

absl::Status CheckPriority(v1::Priority priority) {
  if (v1::Priority_IsValid(priority)) return absl::OkStatus();
  return Invalid("priority", static_cast<int>(priority), " is not a priority known here");
}

absl::Status CheckName(const std::string& field, const std::string& name, size_t most) {
  if (name.size() > most) return Invalid(field, name.size(), " characters are more than ", most);
  if (std::all_of(name.begin(), name.end(), absl::ascii_isprint)) return absl::OkStatus();
  return Invalid(field, "only printable ASCII characters are allowed");
}

absl::Status CheckTimeout(const v1::GenerateRequest& request) {
  const double timeout = request.timeout_s();
  if (!request.has_timeout_s() || (timeout > 0 && std::isfinite(timeout))) return absl::OkStatus();
  return Invalid("timeout_s", timeout, " is not above 0 and finite");
}

absl::Status CheckTruncation(const v1::GenerateRequest& request) {
  if (!request.has_truncate_prompt() || request.truncate_prompt() >= 1) return absl::OkStatus();
  return Invalid("truncate_prompt", request.truncate_prompt(), " is not at least 1");
}

}  // namespace

absl::Status ValidateModel(const std::string& name, const ModelInfo& model) {
  if (name.empty() || IsNameOf(model, name)) return absl::OkStatus();
  return FieldError(absl::StatusCode::kNotFound, "model",
                    absl::StrCat("\"", Printable(name), "\" is not served here; this router serves ", NamesOf(model)));
}

absl::Status ValidateRequest(const v1::GenerateRequest& request, const ModelInfo& model, bool experiments) {
  RUNAHEAD_RETURN_IF_ERROR(CheckName("request_id", request.request_id(), kMaxRequestIdBytes));
  RUNAHEAD_RETURN_IF_ERROR(CheckName("user", request.user(), kMaxUserBytes));
  RUNAHEAD_RETURN_IF_ERROR(CheckTimeout(request));
  RUNAHEAD_RETURN_IF_ERROR(CheckTruncation(request));
  RUNAHEAD_RETURN_IF_ERROR(CheckPriority(request.priority()));
  RUNAHEAD_RETURN_IF_ERROR(ValidateModel(request.model(), model));
  RUNAHEAD_RETURN_IF_ERROR(CheckInput(request, model));
  RUNAHEAD_RETURN_IF_ERROR(CheckSampling(request.sampling(), model));
  RUNAHEAD_RETURN_IF_ERROR(CheckPromptLogprobs(request));
  RUNAHEAD_RETURN_IF_ERROR(CheckStop(request, model));
  RUNAHEAD_RETURN_IF_ERROR(CheckOutput(request, model));
  RUNAHEAD_RETURN_IF_ERROR(CheckAnswers(request));
  RUNAHEAD_RETURN_IF_ERROR(CheckStructureOf(request));
  if (request.has_experiment() && !experiments) {
    return Invalid("experiment", "this router runs without --experiments");
  }
  return CheckExperiment(request.experiment(), model);
}

size_t TextBytes(const v1::GenerateRequest& request) {
  return request.prompt().size() + TextBytes(request.chat());
}

size_t TextBytes(const v1::TokenizeRequest& request) {
  return request.text().size() + TextBytes(request.chat());
}

size_t ChatJsonBytes(const v1::ChatMessages& chat) {
  size_t bytes = chat.tools().size() + chat.template_variables().size();
  for (const v1::ChatMessage& message : chat.messages()) bytes += message.tool_calls().size();
  return bytes;
}

absl::Status CheckInputSize(const v1::GenerateRequest& request, const Tokenizer& tokenizer, const ModelInfo& model) {
  const int64_t output = LeastOutput(request), most = model.context_length - output;
  const auto too_long = [&model, output](absl::string_view least, int64_t tokens) {
    return TooLong("prompt", least, tokens, model, output);
  };
  const int ids = request.token_ids().ids_size();
  const size_t bytes = TextBytes(request);
  const auto check_bytes = [&] {
    if (bytes <= kMaxPromptBytes) return CheckChatJsonSize(request.chat());
    return Invalid("prompt", bytes, " bytes of text are more than ", kMaxPromptBytes);
  };
  if (request.has_truncate_prompt()) return check_bytes();  // what is used of it may fit
  if (ids > most) return too_long("", ids);
  const int messages = request.chat().messages_size();  // each of a token or more, whatever the template
  if (messages > most) return too_long("at least ", messages);
  if (static_cast<int64_t>(bytes) / tokenizer.longest_token() > most) {
    std::vector<std::string_view> texts;
    if (request.has_prompt()) texts.push_back(request.prompt());
    for (const v1::ChatMessage& message : request.chat().messages()) texts.push_back(message.content());
    const int64_t least = tokenizer.LeastTokens(texts);
    if (least > most) return too_long("at least ", least);
  }
  return check_bytes();
}

absl::Status CheckInputSize(const v1::TokenizeRequest& request, const ModelInfo& model) {
  const int messages = request.chat().messages_size();
  if (messages >= model.context_length) return TooLong("chat.messages", "at least ", messages, model);
  const size_t bytes = TextBytes(request);
  if (bytes <= kMaxTokenizeBytes) return CheckChatJsonSize(request.chat());
  if (request.has_chat()) return Invalid("chat", bytes, " bytes of text are more than ", kMaxTokenizeBytes);
  return Invalid("text", bytes, " bytes are more than ", kMaxTokenizeBytes,
                 "; tokenize it in parts, cut where words begin; all but the first without_begin");
}

absl::Status ValidateTokenize(const v1::TokenizeRequest& request, const ModelInfo& model) {
  RUNAHEAD_RETURN_IF_ERROR(ValidateModel(request.model(), model));
  if (request.input_case() == v1::TokenizeRequest::INPUT_NOT_SET) {
    return Invalid("text", "one of text and chat must be given");
  }
  if (!request.has_chat()) return absl::OkStatus();
  for (const auto& [field, set] :
       {std::pair("special", request.special()), std::pair("without_begin", request.without_begin())}) {
    if (set) return Invalid(field, "it goes with text; special tokens of a chat come from its template");
  }
  return CheckChat(request.chat());
}

absl::Status ValidateDetokenize(const v1::DetokenizeRequest& request, const ModelInfo& model) {
  RUNAHEAD_RETURN_IF_ERROR(ValidateModel(request.model(), model));
  return CheckIds("ids", request.ids(), model);
}

absl::Status CheckTokens(const char* field, absl::Span<const int32_t> ids, const ModelInfo& model) {
  for (const int32_t id : ids) {
    if (id >= model.vocabulary_size) {
      return OutOfRange(field, "its token ", id, " is none of the ", model.vocabulary_size, " that the model has");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> ResolveMaxTokens(const v1::GenerateRequest& request, int64_t prompt_tokens,
                                         const ModelInfo& model) {
  if (prompt_tokens < 1) return Invalid("prompt", "it has no tokens");
  const int64_t output = LeastOutput(request);
  if (prompt_tokens + output > model.context_length) return TooLong("prompt", "", prompt_tokens, model, output);
  const int64_t room = model.context_length - prompt_tokens;
  if (!request.stop().has_max_tokens()) {
    return static_cast<int32_t>(request.stop().fill_context() ? room : std::min<int64_t>(kDefaultMaxTokens, room));
  }
  if (request.stop().max_tokens() > room) {
    return OutOfRange("stop.max_tokens", request.stop().max_tokens(), " and the prompt's ", prompt_tokens,
                      " tokens are more than the context of ", model.context_length, " tokens; at most ", room,
                      " are left");
  }
  return request.stop().max_tokens();
}

ChainRequest ResolveChain(const v1::GenerateRequest& request, int64_t prompt_tokens, Schedule schedule) {
  ChainRequest chain;
  chain.tokens = prompt_tokens;
  chain.width = request.experiment().width();
  chain.parts.assign(request.experiment().parts().begin(), request.experiment().parts().end());
  // What is asked for in width or parts is a chain, whatever the router's own choice is.
  const Schedule unasked = chain.width > 1 || chain.parts.size() > 1 ? Schedule::kKvr : schedule;
  chain.schedule = ScheduleFromProto(request.experiment().schedule()).value_or(unasked);
  return chain;
}

absl::Status CheckChain(const ChainRequest& chain, size_t line_size) {
  const absl::Status status = CheckChainRequest(chain, line_size);
  if (status.ok()) return status;
  const std::pair<std::string, std::string> parts = absl::StrSplit(status.message(), absl::MaxSplits(": ", 1));
  return FieldError(status.code(), parts.first, parts.second);
}

}  // namespace runahead
