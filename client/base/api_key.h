// The API key that calls to a router bring.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/rpc/channel.h"

namespace CLI {
class App;
}

namespace runahead {

// Adds --api-key, whose value is RUNAHEAD_API_KEY's where it is not given. `key` outlives `app`; it stays empty without
// either.
void AddApiKey(CLI::App& app, std::string* key);

// INVALID_ARGUMENT, without it, for what cannot be a key; empty is none.
absl::Status CheckApiKey(const std::string& key);

// Interceptors by which each call of a channel brings `key`. None where `key` is empty.
Interceptors BringApiKey(const std::string& key);

}  // namespace runahead
