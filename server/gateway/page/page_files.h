// The files of this folder as they stand here; embed.cmake writes the source.
#pragma once

namespace runahead {

extern const char kFile_page_html[];
extern const char kFile_page_css[];
extern const char kFile_page_js[];
extern const char kFile_openapi_json[];

}  // namespace runahead
