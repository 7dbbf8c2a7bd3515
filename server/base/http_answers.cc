#include "server/base/http_answers.h"

#include <httplib.h>

#include <algorithm>
#include <cstring>

namespace runahead {
namespace {

// A connection that has said `request` and no more, and keeps what is written to it.
class RequestStream final : public httplib::Stream {
 public:
  explicit RequestStream(const std::string& request) : request_(request) {}

  const std::string& written() const { return written_; }

  bool is_readable() const override { return read_ < request_.size(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* into, size_t size) override {
    size = std::min(size, request_.size() - read_);
    std::memcpy(into, request_.data() + read_, size);
    read_ += size;
    return static_cast<ssize_t>(size);
  }
  ssize_t write(const char* bytes, size_t size) override {
    written_.append(bytes, size);
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  const std::string& request_;
  size_t read_ = 0;
  std::string written_;
};

}  // namespace

// httplib's own server reads and writes with a thread for each connection, and bounds each read, but not a request.
class HttpAnswers::Server final : public httplib::Server {
 public:
  std::string Answer(const std::string& request) {
    RequestStream stream(request);
    bool closed = false;
    process_request(stream, /*close_connection=*/true, closed, nullptr);
    return stream.written();
  }
};

HttpAnswers::HttpAnswers() : server_(std::make_unique<Server>()) {}
HttpAnswers::~HttpAnswers() = default;

void HttpAnswers::Get(const std::string& path, std::function<HttpText()> handler) {
  server_->Get(path, [handler = std::move(handler)](const httplib::Request&, httplib::Response& response) {
    const HttpText text = handler();
    response.status = text.status;
    response.set_content(text.body, text.type);
  });
}

std::string HttpAnswers::Answer(const std::string& request) const {
  return server_->Answer(request);
}

}  // namespace runahead
