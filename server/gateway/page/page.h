// The page at `/`, on which people try the service, and the description of the API for programs.
#pragma once

#include <string>

#include "server/gateway/http_exchange.h"

namespace runahead {

inline constexpr char kPagePath[] = "/";
inline constexpr char kPageStylePath[] = "/page.css";
inline constexpr char kPageScriptPath[] = "/page.js";
inline constexpr char kOpenApiPath[] = "/openapi.json";  // OpenAPI 3.1

// The file at one of these paths. Its headers keep a browser from loading or calling anything but this gateway for it,
// and other sites from putting it into a frame.
HttpReply PageReply(const std::string& path);

}  // namespace runahead
