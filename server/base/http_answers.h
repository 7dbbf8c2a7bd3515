// Answers to HTTP requests, as bytes: who serves them does the waiting.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace runahead {

struct HttpText {
  int status = 200;
  std::string body;
  std::string type = "text/plain";
};

// Thread-safe once its handlers are set.
class HttpAnswers {
 public:
  HttpAnswers();
  ~HttpAnswers();

  // What is answered to GET and HEAD of `path`, on the thread that calls Answer().
  void Get(const std::string& path, std::function<HttpText()> handler);

  // The whole answer to a request that ends with its empty line. The connection is to be closed after it.
  std::string Answer(const std::string& request) const;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace runahead
