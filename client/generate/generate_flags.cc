#include "client/generate/generate_flags.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <fstream>
#include <iostream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/base/parse.h"
#include "client/base/typed_flags.h"
#include "kernels/base/status_macros.h"
#include "server/rpc/schedule_proto.h"
#include "server/rpc/tenant_key.h"
#include "server/rpc/transport_options.h"

namespace runahead {
namespace {

absl::StatusOr<std::string> ReadPrompt(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", strerror(errno)));
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string text(static_cast<size_t>(kMaxMessageBytes) + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": is it a file?"));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > static_cast<size_t>(kMaxMessageBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is larger than ", kMaxMessageBytes, " bytes, the most that a request may have"));
  }
  return text;
}

absl::Status CheckTenant(const std::string& tenant) {
  if (IsTenantName(tenant)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("is not 1 to ", kMaxTenantBytes, " printable ASCII characters without spaces"));
}

}  // namespace

void GenerateFlags::AddTo(CLI::App& app) {
  router_.AddTo(app);
  app.add_option("--model", model_, "The model's name, or its file's without .gguf (default: the one that is served)")
      ->type_name("NAME");
  AddNumber(app, "--logprobs", &logprobs_,
            "After the text, a line for each token: its id, text and logprob, then the K likeliest others, 0 to 20",
            "K");
  AddNumber(app, "--n", &n_,
            "Answers to the one prompt, 1 to 64, each with a seed of its own, shown whole as it ends (default: 1)",
            "N");
  AddNumber(app, "--prompt-logprobs", &prompt_logprobs_,
            "The same of each token of the prompt but the first, before those; --max-tokens 0 generates nothing", "K");
  AddNumber(app, "--timeout", &timeout_s_, "Give up after this many seconds (default: never)", "S");
  app.add_option("--priority", priority_, "normal, or low: all of normal priority that wait go first (default: normal)")
      ->check(CLI::IsMember({"normal", "low"}))
      ->type_name("NAME");
  app.add_option("--tenant", tenant_, "Whose the request is: who sends many waits behind himself (default: nobody's)")
      ->type_name("NAME");
  app.add_option("--user", user_, "Whom it is for: the router's log says it (default: nobody)")->type_name("NAME");
  app.add_option(
         "--request-id", request_id_,
         "Its name in logs, answers and traces: at most 128 printable characters (default: the router makes one)")
      ->type_name("ID");
  app.add_flag(
      "--json", json_,
      "One JSON object on stdout when all is there, in place of text as it comes; with --n one a line for each answer");
  app.add_flag("--trace", trace_,
               "Ask the router to record the request (where it runs with --trace asked or all), for runahead trace");
  app.option_defaults()->group("Input (exactly one kind of these)");
  app.add_option("--prompt", prompt_, "A text to continue")->type_name("TEXT");
  app.add_option("--prompt-file", prompt_file_, "The same from a file; - reads stdin")->type_name("FILE");
  app.add_option("--token-ids", token_ids_, "Token ids, as in 1,2,3")->type_name("IDS");
  AddNumber(app, "--truncate-prompt", &truncate_prompt_, "Use the last N tokens of a longer input (default: all)", "N");
  AddRepeated(app, "--message", &messages_,
              "A message of a chat, as in 'user:Hello'; repeated for more, the oldest first", "ROLE:TEXT");
  app.option_defaults()->group("Chats (with --message)");
  template_.AddTo(app);
  sampling_.AddTo(app);
  structure_.AddTo(app);
  app.option_defaults()->group("Experiments (only where the router runs with --experiments)");
  AddNumber(app, "--width", &width_, "Workers of the chain", "N");
  app.add_option("--parts", parts_, "Tokens of each worker, as in 700,324")->type_name("PARTS");
  app.add_option("--schedule", schedule_, absl::StrCat("One of ", absl::StrJoin(ScheduleNames(), ", ")))
      ->type_name("NAME");
  app.option_defaults()->group("Options");
}

absl::StatusOr<v1::GenerateRequest> GenerateFlags::Request() const {
  v1::GenerateRequest request;
  RUNAHEAD_RETURN_IF_ERROR(InFlag("--model", CheckUtf8(model_)));
  request.set_model(model_);
  if (tenant_) RUNAHEAD_RETURN_IF_ERROR(InFlag("--tenant", CheckTenant(*tenant_)));
  if (priority_ == "low") request.set_priority(v1::PRIORITY_LOW);
  RUNAHEAD_RETURN_IF_ERROR(FillInput(request));
  for (const std::string& stop : sampling_.stop) RUNAHEAD_RETURN_IF_ERROR(InFlag("--stop", CheckUtf8(stop)));
  for (const std::string& word : sampling_.bad_words) RUNAHEAD_RETURN_IF_ERROR(InFlag("--bad-word", CheckUtf8(word)));
  RUNAHEAD_RETURN_IF_ERROR(InFlag("--user", CheckUtf8(user_)));
  request.set_user(user_);
  RUNAHEAD_RETURN_IF_ERROR(InFlag("--request-id", CheckUtf8(request_id_)));
  request.set_request_id(request_id_);
  if (truncate_prompt_) request.set_truncate_prompt(*truncate_prompt_);
  sampling_.FillIn(request);
  RUNAHEAD_RETURN_IF_ERROR(structure_.FillIn(request));
  if (n_) request.set_n(*n_);
  if (logprobs_) request.mutable_sampling()->set_logprobs(*logprobs_);
  if (prompt_logprobs_) request.set_prompt_logprobs(*prompt_logprobs_);
  RUNAHEAD_RETURN_IF_ERROR(FillExperiment(request));
  return request;
}

absl::Status GenerateFlags::FillInput(v1::GenerateRequest& request) const {
  const int kinds = (prompt_ ? 1 : 0) + (prompt_file_ ? 1 : 0) + (token_ids_ ? 1 : 0) + (messages_.empty() ? 0 : 1);
  if (kinds != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        kinds == 0 ? "nothing to go on from" : "more than one kind of input",
        ": give exactly one of --prompt TEXT, --prompt-file FILE, --token-ids IDS, --message ROLE:TEXT..."));
  }
  if (prompt_) {
    RUNAHEAD_RETURN_IF_ERROR(InFlag("--prompt", CheckUtf8(*prompt_)));
    request.set_prompt(*prompt_);
  }
  if (prompt_file_) {
    const absl::StatusOr<std::string> text = ReadPrompt(*prompt_file_);
    RUNAHEAD_RETURN_IF_ERROR(InFlag("--prompt-file", text.status()));
    RUNAHEAD_RETURN_IF_ERROR(InFlag(absl::StrCat("--prompt-file ", *prompt_file_), CheckUtf8(*text)));
    request.set_prompt(*text);
  }
  if (token_ids_) {
    const auto ids = ParseIds(*token_ids_);
    RUNAHEAD_RETURN_IF_ERROR(InFlag("--token-ids", ids.status()));
    request.mutable_token_ids()->mutable_ids()->Assign(ids->begin(), ids->end());
  }
  for (const std::string& text : messages_) {
    const auto message = ParseMessage(text);
    RUNAHEAD_RETURN_IF_ERROR(InFlag("--message", message.status()));
    *request.mutable_chat()->add_messages() = *message;
  }
  if (!template_.given()) return absl::OkStatus();
  if (messages_.empty()) {
    return absl::InvalidArgumentError("--tools and --template-variable go with --message: only chats have a template");
  }
  return template_.FillIn(*request.mutable_chat());
}

// Absent unless asked for: most routers refuse experiments.
absl::Status GenerateFlags::FillExperiment(v1::GenerateRequest& request) const {
  if (width_) request.mutable_experiment()->set_width(*width_);
  if (parts_) {
    const auto parts = ParseIds(*parts_);
    RUNAHEAD_RETURN_IF_ERROR(InFlag("--parts", parts.status()));
    request.mutable_experiment()->mutable_parts()->Assign(parts->begin(), parts->end());
  }
  if (schedule_) {
    const std::optional<Schedule> schedule = ParseSchedule(*schedule_);
    if (!schedule) {
      return absl::InvalidArgumentError(
          absl::StrCat("--schedule: '", *schedule_, "' is none of ", absl::StrJoin(ScheduleNames(), ", ")));
    }
    request.mutable_experiment()->set_schedule(ScheduleToProto(*schedule));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> GenerateFlags::Timeout() const {
  if (!timeout_s_) return absl::InfiniteDuration();
  if (*timeout_s_ > 0) return absl::Seconds(*timeout_s_);
  return absl::InvalidArgumentError(absl::StrCat("--timeout: ", *timeout_s_, " is not above 0 seconds"));
}

}  // namespace runahead
