// Requests in the OpenAI API's form. Pure.
#pragma once

#include <string>

#include "client/bench/bench_request.h"

namespace runahead {

// The body for /chat/completions where the request has messages, else for /completions: greedy, streamed, with usage
// asked for. Texts are UTF-8.
std::string OpenAiBody(const BenchRequest& request, const std::string& model);

}  // namespace runahead
