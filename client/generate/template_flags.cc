#include "client/generate/template_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/base/parse.h"
#include "client/base/typed_flags.h"
#include "kernels/base/status_macros.h"
#include "server/base/text_file.h"
#include "server/rpc/transport_options.h"
#include "server/tokenizer/chat_template.h"

namespace runahead {
namespace {

// "name=JSON" as `"name": JSON`.
absl::StatusOr<std::string> ParseVariable(const std::string& text) {
  const size_t sign = text.find('=');
  if (sign == std::string::npos || sign == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text.substr(0, 40), "' has no name; write it like enable_thinking=false"));
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckUtf8(text));
  const std::string member = absl::StrCat(nlohmann::json(text.substr(0, sign)).dump(), ": ", text.substr(sign + 1));
  if (nlohmann::json::accept(text.substr(sign + 1))) return member;
  return absl::InvalidArgumentError(absl::StrCat("what '", text.substr(0, std::min<size_t>(sign, 40)),
                                                 "' is set to is no JSON; a text stands in \"\""));
}

absl::StatusOr<std::string> ReadTools(const std::string& path) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path, kMaxMessageBytes));
  RUNAHEAD_RETURN_IF_ERROR(CheckJsonArray(text));
  return text;
}

}  // namespace

void TemplateFlags::AddTo(CLI::App& app) {
  app.add_option("--tools", tools_file,
                 "A file with the tools that the model may call: a JSON array, as the model's chat template wants them")
      ->type_name("FILE");
  AddRepeated(app, "--template-variable", &variables,
              "A variable for the model's chat template, as in enable_thinking=false; repeated for more", "NAME=JSON");
}

absl::Status TemplateFlags::FillIn(v1::ChatMessages& chat) const {
  if (tools_file) {
    const absl::StatusOr<std::string> tools = ReadTools(*tools_file);
    RUNAHEAD_RETURN_IF_ERROR(InFlag("--tools", tools.status()));
    chat.set_tools(*tools);
  }
  std::string members;
  for (const std::string& text : variables) {
    const absl::StatusOr<std::string> member = ParseVariable(text);
    RUNAHEAD_RETURN_IF_ERROR(InFlag("--template-variable", member.status()));
    absl::StrAppend(&members, members.empty() ? "" : ", ", *member);
  }
  if (!members.empty()) chat.set_template_variables(absl::StrCat("{", members, "}"));
  return absl::OkStatus();
}

}  // namespace runahead
