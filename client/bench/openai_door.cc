#include "client/bench/openai_door.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/bench/openai_body.h"
#include "client/bench/openai_stream.h"
#include "client/bench/sse_reader.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

constexpr size_t kMostAnswerBytes = size_t{1} << 20;  // of one that is no stream
constexpr int kHttpOk = 200;
constexpr int kHttpPort = 80;

// An answer that is read as a whole: a list of models, or why there is no stream.
class WholeAnswer {
 public:
  absl::Status Add(absl::string_view bytes) {
    if (text_.size() + bytes.size() > kMostAnswerBytes) return absl::InternalError("the answer is too long");
    text_.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The events of one answer on their way to its hearer.
class StreamHearer final : public HttpHearer {
 public:
  explicit StreamHearer(std::shared_ptr<AnswerHearer> hearer) : hearer_(std::move(hearer)) {}

  absl::Status OnHead(int status, absl::string_view content_type) override {
    status_ = status;
    if (status != kHttpOk || absl::StartsWithIgnoreCase(content_type, "text/event-stream")) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the answer is no stream of events but ",
                                            content_type.empty() ? "says no type" : Printable(content_type)));
  }
  absl::Status OnBody(absl::string_view bytes) override {
    if (status_ != kHttpOk) return refusal_.Add(bytes);
    return events_.Feed(bytes, [this](absl::string_view data) -> absl::Status {
      RUNAHEAD_ASSIGN_OR_RETURN(const bool came, stream_.Add(data));
      if (came) hearer_->OnTokens(1);
      return absl::OkStatus();
    });
  }
  void OnEnd(const absl::Status& status) override { hearer_->OnEnd(Judge(status), stream_.counts()); }

 private:
  absl::Status Judge(const absl::Status& status) const {
    RUNAHEAD_RETURN_IF_ERROR(status);
    return status_ == kHttpOk ? stream_.End() : HttpFailure(status_, refusal_.text());
  }

  const std::shared_ptr<AnswerHearer> hearer_;
  int status_ = 0;
  WholeAnswer refusal_;
  SseReader events_;
  OpenAiStream stream_;
};

// An answer that somebody waits for.
class AwaitedAnswer final : public HttpHearer {
 public:
  absl::Status OnHead(int status, absl::string_view) override {
    status_ = status;
    return absl::OkStatus();
  }
  absl::Status OnBody(absl::string_view bytes) override { return answer_.Add(bytes); }
  void OnEnd(const absl::Status& status) override RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    end_ = status.ok() && status_ != kHttpOk ? HttpFailure(status_, answer_.text()) : status;
    changed_.NotifyAll();
  }
  absl::StatusOr<std::string> Wait() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (!end_.has_value()) changed_.Wait(mu_);
    RUNAHEAD_RETURN_IF_ERROR(*end_);
    return answer_.text();
  }

 private:
  int status_ = 0;
  WholeAnswer answer_;  // of the client's thread until the end
  Mutex mu_;
  CondVar changed_;
  std::optional<absl::Status> end_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<ServerUrl> ParseServerUrl(absl::string_view text) {
  absl::string_view rest = text;
  if (absl::StartsWith(rest, "https://")) {
    return absl::InvalidArgumentError(
        "https is not spoken here; use a server's plain port, or a proxy beside this tool");
  }
  if (!absl::ConsumePrefix(&rest, "http://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", Printable(text), "' does not begin with http://; write it like http://127.0.0.1:8000/v1"));
  }
  const size_t slash = rest.find('/');
  const std::string host(rest.substr(0, slash));
  ServerUrl url;
  url.path = slash == absl::string_view::npos ? "/v1" : std::string(absl::StripSuffix(rest.substr(slash), "/"));
  for (const char c : url.path) {
    if (c <= ' ' || c > '~') return absl::InvalidArgumentError(absl::StrCat("'", Printable(text), "' is no URL"));
  }
  const bool has_port = host.rfind(':') != std::string::npos && !absl::EndsWith(host, "]");
  RUNAHEAD_ASSIGN_OR_RETURN(url.server, ParseHostPort(has_port ? host : absl::StrCat(host, ":", kHttpPort)));
  return url;
}

absl::StatusOr<std::unique_ptr<OpenAiDoor>> OpenAiDoor::Open(const ServerUrl& url, const std::string& api_key,
                                                             absl::Duration timeout) {
  HttpClientOptions options = {.server = url.server, .timeout = timeout};
  if (!api_key.empty()) options.authorization = absl::StrCat("Bearer ", api_key);
  RUNAHEAD_ASSIGN_OR_RETURN(auto client, HttpClient::Start(options));
  return std::unique_ptr<OpenAiDoor>(new OpenAiDoor(url.path, std::move(client)));
}

absl::StatusOr<std::string> OpenAiDoor::FirstModel() {
  const auto answer = std::make_shared<AwaitedAnswer>();
  client_->Get(absl::StrCat(path_, "/models"), answer);
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, answer->Wait());
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool listed = json.is_object() && json.contains("data") && json["data"].is_array() && !json["data"].empty() &&
                      json["data"][0].is_object() && json["data"][0].contains("id") &&
                      json["data"][0]["id"].is_string();
  if (!listed) return absl::InternalError(absl::StrCat(path_, "/models lists no model; name it with --model"));
  return json["data"][0]["id"].get<std::string>();
}

void OpenAiDoor::Ask(const BenchRequest& request, std::shared_ptr<AnswerHearer> hearer) {
  const char* const route = request.messages.empty() ? "/completions" : "/chat/completions";
  client_->PostJson(absl::StrCat(path_, route), OpenAiBody(request, model_),
                    std::make_shared<StreamHearer>(std::move(hearer)));
}

}  // namespace runahead
