// The answers of a request's calls as the field's JSON: one object, or the data of server-sent events.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/calls.h"

namespace runahead {

// Of one request. Not thread-safe.
class OpenAiAnswer {
 public:
  virtual ~OpenAiAnswer() = default;

  // Takes in what the call of prompt `prompt` brought. Returns the data of the events that it makes of it where the
  // request is streamed (JSON, one object each, without "data: "); nothing where it is not, or nothing is to be said
  // yet.
  virtual std::vector<std::string> Add(int prompt, const v1::GenerateResponse& response) = 0;

  // Once all calls have ended: whether they brought all that was asked for. A router that is older than this gateway
  // does not know all of a request, and answers a part of it.
  virtual bool IsComplete() const = 0;

  // Once all calls have ended, where it is complete. Streamed: the data of what is still to be said (usage); else the whole answer, one
  // object.
  virtual std::vector<std::string> Finish() = 0;
};

// `id` is that of the answer ("chatcmpl-...", "cmpl-..."), `created` is in seconds of Unix time.
std::unique_ptr<OpenAiAnswer> MakeAnswer(const OpenAiCalls& calls, const std::string& id, int64_t created);

}  // namespace runahead
