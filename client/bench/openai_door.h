// Any server of the OpenAI API, over HTTP.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/bench/bench_door.h"
#include "client/bench/http_client.h"

namespace runahead {

struct ServerUrl {
  HostPort server;
  std::string path;  // in front of /completions, as in "/v1"; may be empty
};

// "http://HOST[:PORT][/v1]". INVALID_ARGUMENT, without the flag's name; https is refused by name.
absl::StatusOr<ServerUrl> ParseServerUrl(absl::string_view text);

// Thread-safe.
class OpenAiDoor final : public BenchDoor {
 public:
  // `api_key`: empty where there is none. Errors: of HttpClient::Start.
  static absl::StatusOr<std::unique_ptr<OpenAiDoor>> Open(const ServerUrl& url, const std::string& api_key,
                                                          absl::Duration timeout);

  // The first model that the server lists. Blocks for at most the timeout. UNAVAILABLE: nobody answers; else what
  // HttpFailure makes of the answer, or INTERNAL where it has no model.
  absl::StatusOr<std::string> FirstModel();
  // Of all requests from now on.
  void SetModel(std::string model) { model_ = std::move(model); }

  void Ask(const BenchRequest& request, std::shared_ptr<AnswerHearer> hearer) override;
  void Cancel() override { client_->Cancel(); }

 private:
  OpenAiDoor(std::string path, std::unique_ptr<HttpClient> client)
      : path_(std::move(path)), client_(std::move(client)) {}

  const std::string path_;
  std::string model_;
  std::unique_ptr<HttpClient> client_;
};

}  // namespace runahead
