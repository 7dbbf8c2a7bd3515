#include "server/gateway/page/page.h"

#include "server/gateway/page/page_files.h"

namespace runahead {

HttpReply PageReply(const std::string& path) {
  HttpReply reply;
  reply.headers = {
      // The icon is empty, and stands in the page itself.
      {"Content-Security-Policy",
       "default-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Cache-Control", "no-cache"},
  };
  if (path == kPageStylePath) {
    reply.type = "text/css; charset=utf-8";
    reply.body = kFile_page_css;
  } else if (path == kPageScriptPath) {
    reply.type = "text/javascript; charset=utf-8";
    reply.body = kFile_page_js;
  } else if (path == kOpenApiPath) {
    reply.type = "application/json";
    reply.body = kFile_openapi_json;
  } else {
    reply.type = "text/html; charset=utf-8";
    reply.body = kFile_page_html;
  }
  return reply;
}

}  // namespace runahead
