// What a router says of its cache, as text and as JSON.
#pragma once

#include <string>

#include "runahead/v1/cache.pb.h"

namespace runahead {

// Lines of the router, then a table of its decode workers.
std::string CacheText(const v1::ShowCacheResponse& shown);
std::string EmptiedText(const v1::EmptyCacheResponse& emptied);
// One object, on one line. What is not known is null.
std::string CacheJson(const v1::ShowCacheResponse& shown);
std::string EmptiedJson(const v1::EmptyCacheResponse& emptied);

}  // namespace runahead
