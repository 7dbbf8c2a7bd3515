// The page's files as they stand in this folder; embed.cmake writes the source.
#pragma once

namespace runahead {

extern const char kPage_html[];
extern const char kPage_css[];
extern const char kPage_js[];

}  // namespace runahead
