#include "server/gateway/gateway.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "server/gateway/generation.h"
#include "server/gateway/openai/error.h"
#include "server/gateway/openai/other_routes.h"
#include "server/gateway/page/page.h"
#include "server/gateway/unary_call.h"
#include "server/rpc/health_check.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr char kModels[] = "/v1/models";
constexpr absl::Duration kHealthTimeout = absl::Seconds(2);
// Reading one takes some 20 ms a MiB.
constexpr size_t kLargeBody = 64 << 10;

std::string RouteOf(const std::string& path) {
  return absl::StartsWith(path, absl::StrCat(kModels, "/")) ? kModels : path;
}

// What to use in place of a path of the field that is not here.
std::string NoSuchPath(absl::string_view path) {
  constexpr std::pair<absl::string_view, absl::string_view> kKnown[] = {
      {"/v1/responses", "the Responses API is not served here; use /v1/chat/completions"},
      {"/v1/messages", "the API of messages is not served here; use /v1/chat/completions"},
      {"/v1/embeddings", "embeddings are not served here: the model generates text"},
      {"/v1/rerank", "ranking is not served here: the model generates text"},
      {"/v1/score", "ranking is not served here: the model generates text"},
      {"/v1/moderations", "moderations are not served here: the model generates text"},
      {"/v1/audio", "audio is not served here: the model generates text"},
      {"/v1/images", "images are not served here: the model generates text"},
      {"/chat/completions", "the base URL of this API ends with /v1: /v1/chat/completions"},
      {"/completions", "the base URL of this API ends with /v1: /v1/completions"},
      {"/models", "the base URL of this API ends with /v1: /v1/models"},
  };
  for (const auto& [known, words] : kKnown) {
    if (path == known || (absl::StartsWith(path, known) && path[known.size()] == '/')) {
      return std::string(words);
    }
  }
  return "there is no such path here; docs/http.md lists them";
}

HttpReply ErrorReply(int status, const absl::Status& error) {
  return {.status = status, .body = ToOpenAiError(error).body};
}

bool IsOf(const std::vector<std::string>& names, absl::string_view name) {
  return std::any_of(names.begin(), names.end(), [name](const std::string& allowed) {
    return allowed == "*" || absl::EqualsIgnoreCase(allowed, name);
  });
}

// "chat.example.org" of "chat.example.org:8000", "::1" of "[::1]:8000".
std::string HostNameOf(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) return std::string(host.substr(0, host.find(']')));
  return std::string(host.substr(0, host.find(':')));
}

bool IsIpAddress(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 || inet_pton(AF_INET6, host.c_str(), &v6) == 1;
}

}  // namespace

Gateway::Gateway(GatewayParts parts)
    : parts_(std::move(parts)), model_(parts_.stub, parts_.model_aliases, parts_.clock), reader_("read-bodies") {}

const std::map<std::string, Gateway::Route>& Gateway::Routes() {
  static const auto& routes = *new std::map<std::string, Route>{
      {"/v1/chat/completions", {"POST", &Gateway::Chat}},
      {"/v1/completions", {"POST", &Gateway::Complete}},
      {kModels, {"GET", &Gateway::Models}},
      {"/tokenize", {"POST", &Gateway::Tokenize}},
      {"/detokenize", {"POST", &Gateway::Detokenize}},
      {"/health", {"GET", &Gateway::Health}},
      {"/metrics", {"GET", &Gateway::Metrics}},
      {kPagePath, {"GET", &Gateway::Page}},
      {kPageStylePath, {"GET", &Gateway::Page}},
      {kPageScriptPath, {"GET", &Gateway::Page}},
      {kOpenApiPath, {"GET", &Gateway::Page}},
  };
  return routes;
}

// A site's own name may be made to lead to this host (DNS rebinding): its pages are then of the same origin as what
// they call, and their browsers ask nobody. Such a call says that name as its host. Whoever says none is no browser.
absl::Status Gateway::CheckHost(const HttpRequest& request) const {
  const absl::string_view given = request.Header("host");
  if (given.empty()) return absl::OkStatus();
  const std::string host = HostNameOf(given);
  if (absl::EqualsIgnoreCase(host, "localhost") || IsIpAddress(host) || IsOf(parts_.allowed_hosts, host)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat("this gateway is not called \"", host,
                                                  "\": call it as localhost or by its address; an operator can allow "
                                                  "the name by the gateway's option allowed_hosts"));
}

// A page of another site could have its visitors' browsers call a gateway on their own machines: they say whose page it
// is, and it must be an allowed one.
absl::Status Gateway::CheckOrigin(const HttpRequest& request, HttpHeaders& headers) const {
  const absl::string_view origin = request.Header("origin");
  if (origin.empty()) return absl::OkStatus();
  if (IsOf(parts_.cors_origins, origin)) {
    headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
    headers.emplace_back("Access-Control-Expose-Headers", "x-request-id, Retry-After");
    headers.emplace_back("Vary", "Origin");
    return absl::OkStatus();
  }
  absl::string_view host = origin;
  if ((absl::ConsumePrefix(&host, "http://") || absl::ConsumePrefix(&host, "https://")) &&
      absl::EqualsIgnoreCase(host, request.Header("host"))) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      "pages of this origin may not call: an operator can allow it by the gateway's option cors_origins");
}

void Gateway::Handle(std::shared_ptr<HttpExchange> exchange) {
  const HttpRequest& request = exchange->request();
  absl::StatusOr<DrainGate::Pass> pass = parts_.gate.Enter();
  if (!pass.ok()) return exchange->Reply(ErrorReply(503, pass.status()));
  const std::string path = RouteOf(request.path);
  const auto route = Routes().find(path);
  HttpHeaders headers;
  absl::Status allowed = CheckHost(request);
  allowed.Update(CheckOrigin(request, headers));
  const auto context = std::make_shared<CallContext>(std::move(exchange), route == Routes().end() ? "other" : path,
                                                     std::move(headers), *std::move(pass), parts_.metrics);
  if (!allowed.ok()) return context->Fail(allowed);
  if (route == Routes().end()) {
    return context->Reply(ErrorReply(404, absl::NotFoundError(NoSuchPath(path))));
  }
  const std::string& method = request.method;
  if (method == "OPTIONS") {
    return context->Reply(
        {.status = 204,
         .headers = {{"Access-Control-Allow-Methods", absl::StrCat(route->second.method, ", OPTIONS")},
                     {"Access-Control-Allow-Headers",
                      "Authorization, Content-Type, x-request-id, traceparent, runahead-tenant"},
                     {"Access-Control-Max-Age", "600"}}});
  }
  if (method != route->second.method && !(method == "HEAD" && route->second.method == "GET")) {
    HttpReply reply = ErrorReply(405, absl::InvalidArgumentError(absl::StrCat("use ", route->second.method)));
    reply.headers.emplace_back("Allow", absl::StrCat(route->second.method, ", OPTIONS"));
    return context->Reply(std::move(reply));
  }
  (this->*route->second.handle)(context);
}

void Gateway::Generate(Context context, bool chat) {
  model_.With(context, [this, context, chat](absl::StatusOr<ServedModel::Known> known) {
    if (!known.ok()) return context->Fail(known.status());
    if (context->request().body.size() <= kLargeBody) return StartGeneration(context, chat, known->facts);
    reader_.Post([this, context, chat, facts = known->facts] { StartGeneration(context, chat, facts); });
  });
}

void Gateway::StartGeneration(const Context& context, bool chat, const DoorFacts& facts) {
  const std::string& body = context->request().body;
  absl::StatusOr<OpenAiCalls> calls = chat ? ReadChatRequest(body, facts) : ReadCompletionRequest(body, facts);
  if (!calls.ok()) {
    const bool of_tools = chat && facts.tool_format.empty() && BlamedField(calls.status()) == "tools";
    if (of_tools) return RefuseTools(context, facts, calls.status());
    return context->Fail(calls.status(), {.prompt = PromptMember(chat)});
  }
  for (const std::string& member : calls->ignored) parts_.metrics.Ignored(member);
  Generation::Start(context, *std::move(calls), parts_.stub, parts_.quiet_time, parts_.memory, parts_.metrics);
}

// A model without a chat template has no form of calls, either. The router knows which of both it is, and says it of
// any chat.
void Gateway::RefuseTools(const Context& context, const DoorFacts& facts, const absl::Status& why) {
  absl::StatusOr<v1::TokenizeRequest> chat = ReadTokenizeRequest(context->request().body, facts);
  if (!chat.ok()) return context->Fail(why);
  CallUnary<v1::TokenizeRequest, v1::TokenizeResponse>(
      context, *std::move(chat),
      [this](auto* call, const auto* asked, auto* response, auto done) {
        parts_.stub.async()->Tokenize(call, asked, response, std::move(done));
      },
      [context, why](const absl::StatusOr<v1::TokenizeResponse>& response) {
        context->Fail(absl::IsFailedPrecondition(response.status()) ? response.status() : why);
      });
}

void Gateway::Models(Context context) {
  model_.Ask(context, [this, context](absl::StatusOr<v1::ListModelsResponse> models) {
    if (!models.ok()) return context->Fail(models.status());
    DoorFacts facts{.model = models->models().empty() ? "" : models->models(0).name(), .aliases = model_.aliases()};
    absl::string_view id = context->request().path;
    absl::ConsumePrefix(&id, kModels);
    absl::ConsumePrefix(&id, "/");
    const int64_t now = absl::ToUnixSeconds(absl::Now());
    if (id.empty()) return context->Reply(ModelsJson(*models, facts, now));
    absl::StatusOr<std::string> one = OneModelJson(*models, facts, now, id);
    if (!one.ok()) return context->Fail(one.status());
    context->Reply(*std::move(one));
  });
}

void Gateway::Tokenize(Context context) {
  model_.With(context, [this, context](absl::StatusOr<ServedModel::Known> known) {
    if (!known.ok()) return context->Fail(known.status());
    reader_.Post([this, context, known = *std::move(known)] {
      absl::StatusOr<v1::TokenizeRequest> request = ReadTokenizeRequest(context->request().body, known.facts);
      if (!request.ok()) return context->Fail(request.status());
      CallUnary<v1::TokenizeRequest, v1::TokenizeResponse>(
          context, *std::move(request),
          [this](auto* call, const auto* asked, auto* response, auto done) {
            parts_.stub.async()->Tokenize(call, asked, response, std::move(done));
          },
          [context, length = known.context_length](absl::StatusOr<v1::TokenizeResponse> response) {
            if (!response.ok()) return context->Fail(response.status());
            context->Reply(TokenizeJson(*response, length));
          });
    });
  });
}

void Gateway::Detokenize(Context context) {
  model_.With(context, [this, context](absl::StatusOr<ServedModel::Known> known) {
    if (!known.ok()) return context->Fail(known.status());
    reader_.Post([this, context, facts = known->facts] {
      absl::StatusOr<v1::DetokenizeRequest> request = ReadDetokenizeRequest(context->request().body, facts);
      if (!request.ok()) return context->Fail(request.status());
      CallUnary<v1::DetokenizeRequest, v1::DetokenizeResponse>(
          context, *std::move(request),
          [this](auto* call, const auto* asked, auto* response, auto done) {
            parts_.stub.async()->Detokenize(call, asked, response, std::move(done));
          },
          [context](absl::StatusOr<v1::DetokenizeResponse> response) {
            if (!response.ok()) return context->Fail(response.status());
            context->Reply(DetokenizeJson(*response));
          });
    });
  });
}

void Gateway::Health(Context context) {
  struct Question {  // ends before the context, with which the process may end
    Context context;
    HealthCheck check;
  };
  const auto asked = std::make_shared<Question>();
  asked->context = std::move(context);
  asked->check.Ask(parts_.channel, kHealthTimeout, "", [asked](const absl::Status& status) {
    if (status.ok()) return asked->context->Reply("{\"status\":\"ok\"}");
    asked->context->Fail(absl::UnavailableError(absl::StrCat("the router does not serve: ", status.message())));
  });
}

void Gateway::Metrics(Context context) {
  context->Reply({.body = parts_.registry.Serialize(), .type = "text/plain; version=0.0.4; charset=utf-8"});
}

void Gateway::Page(Context context) {
  context->Reply(PageReply(context->request().path));
}

}  // namespace runahead
