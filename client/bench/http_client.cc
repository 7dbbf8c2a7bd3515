#include "client/bench/http_client.h"

#include <algorithm>
#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <limits>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/thread_name.h"
#include "kernels/base/with_threads.h"

namespace runahead {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using BoostError = boost::system::error_code;

constexpr size_t kMostHttpBytes = 64 << 10;  // that are kept of what has come and is not read yet

// Beast has a category of its own for what is no HTTP.
absl::Status ExchangeError(const BoostError& error, const HostPort& server) {
  if (error == beast::error::timeout) return absl::DeadlineExceededError("the answer did not end within --timeout");
  if (error == http::error::end_of_stream || error == http::error::partial_message) {
    return absl::UnavailableError("the connection was cut before the answer's end");
  }
  if (error.category() == make_error_code(http::error::bad_version).category()) {
    return absl::InternalError(absl::StrCat("the answer is no HTTP: ", error.message()));
  }
  return absl::UnavailableError(
      absl::StrCat("the connection to ", FormatHostPort(server), " failed: ", error.message()));
}

}  // namespace

// All of it is used by the thread of `io`, but for what says otherwise.
struct HttpClient::Parts {
  explicit Parts(const HttpClientOptions& given) : options(given), work(asio::make_work_guard(io)) {}

  const HttpClientOptions options;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::vector<asio::ip::tcp::endpoint> endpoints;        // does not change
  std::vector<std::unique_ptr<beast::tcp_stream>> idle;  // the one used last stands last
  std::set<std::shared_ptr<Exchange>> running;
  bool cancelled = false;
  std::thread thread;
};

class HttpClient::Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(Parts& parts, http::verb method, std::string path, std::string body, std::shared_ptr<HttpHearer> hearer)
      : parts_(parts), hearer_(std::move(hearer)), buffer_(kMostHttpBytes) {
    request_.method(method);
    request_.target(path);
    request_.version(11);
    request_.set(http::field::host, FormatHostPort(parts.options.server));
    request_.set(http::field::user_agent, "runahead-bench");
    if (!parts.options.authorization.empty()) request_.set(http::field::authorization, parts.options.authorization);
    if (method == http::verb::post) request_.set(http::field::content_type, "application/json");
    request_.body() = std::move(body);
    request_.prepare_payload();
  }

  void Run() {
    if (parts_.cancelled) return hearer_->OnEnd(absl::CancelledError("cancelled"));
    parts_.running.insert(shared_from_this());
    reused_ = !parts_.idle.empty();
    if (!reused_) return Connect();
    stream_ = std::move(parts_.idle.back());
    parts_.idle.pop_back();
    SetDeadline();
    Write();
  }

  void Cancel() { stream_->close(); }

 private:
  // Of what is not infinite; a year stands for more.
  void SetDeadline() {
    stream_->expires_after(absl::ToChronoNanoseconds(std::min(parts_.options.timeout, absl::Hours(24 * 365))));
  }

  void Connect() {
    reused_ = false;
    stream_ = std::make_unique<beast::tcp_stream>(parts_.io);
    SetDeadline();
    stream_->async_connect(parts_.endpoints, [self = shared_from_this()](BoostError error, const auto&) {
      if (error) return self->Fail(error);
      BoostError ignored;
      self->stream_->socket().set_option(asio::ip::tcp::no_delay(true), ignored);
      self->Write();
    });
  }

  void Write() {
    http::async_write(*stream_, request_, [self = shared_from_this()](BoostError error, size_t) {
      if (error) return self->FailEarly(error);
      self->ReadHead();
    });
  }

  void ReadHead() {
    parser_.emplace();
    // None at all means 0 to Beast 1.74. Who hears the body bounds it.
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    http::async_read_header(*stream_, buffer_, *parser_, [self = shared_from_this()](BoostError error, size_t) {
      if (error) return self->FailEarly(error);
      const auto& head = self->parser_->get();
      const beast::string_view type = head[http::field::content_type];
      const absl::Status taken =
          self->hearer_->OnHead(static_cast<int>(head.result_int()), absl::string_view(type.data(), type.size()));
      if (!taken.ok()) return self->End(taken);
      self->ReadBody();
    });
  }

  void ReadBody() {
    if (parser_->is_done()) return Done();
    parser_->get().body().data = piece_.data();
    parser_->get().body().size = piece_.size();
    http::async_read_some(*stream_, buffer_, *parser_, [self = shared_from_this()](BoostError error, size_t) {
      const size_t size = self->piece_.size() - self->parser_->get().body().size;
      if (size > 0) {
        const absl::Status taken = self->hearer_->OnBody(absl::string_view(self->piece_.data(), size));
        if (!taken.ok()) return self->End(taken);
      }
      if (error && error != http::error::need_buffer) return self->Fail(error);
      self->ReadBody();
    });
  }

  void Done() {
    if (parser_->get().keep_alive() && buffer_.size() == 0 && !parts_.cancelled) {
      stream_->expires_never();
      parts_.idle.push_back(std::move(stream_));
    }
    End(absl::OkStatus());
  }

  // A server may close a connection that has nothing to do, at the moment when it gets something to do.
  void FailEarly(const BoostError& error) {
    const bool untouched = buffer_.size() == 0 && (!parser_ || !parser_->got_some());
    if (reused_ && untouched && error != beast::error::timeout && !parts_.cancelled) return Connect();
    Fail(error);
  }

  void Fail(const BoostError& error) {
    End(parts_.cancelled ? absl::CancelledError("cancelled") : ExchangeError(error, parts_.options.server));
  }

  void End(const absl::Status& status) {
    const std::shared_ptr<Exchange> self = shared_from_this();
    parts_.running.erase(self);
    hearer_->OnEnd(status);
  }

  Parts& parts_;
  const std::shared_ptr<HttpHearer> hearer_;
  http::request<http::string_body> request_;
  std::unique_ptr<beast::tcp_stream> stream_;
  bool reused_ = false;  // the connection has served another exchange
  beast::flat_buffer buffer_;
  std::optional<http::response_parser<http::buffer_body>> parser_;
  std::array<char, 16 << 10> piece_;
};

absl::StatusOr<std::unique_ptr<HttpClient>> HttpClient::Start(const HttpClientOptions& options) {
  auto parts = std::make_unique<Parts>(options);
  asio::ip::tcp::resolver resolver(parts->io);
  BoostError error;
  const auto found = resolver.resolve(options.server.host, absl::StrCat(options.server.port), error);
  if (error)
    return absl::UnavailableError(absl::StrCat("nobody is called ", options.server.host, ": ", error.message()));
  for (const auto& entry : found) parts->endpoints.push_back(entry.endpoint());
  return WithThreads([&]() -> absl::StatusOr<std::unique_ptr<HttpClient>> {
    parts->thread = std::thread([&io = parts->io] {
      NameThread("http");
      io.run();
    });
    return std::unique_ptr<HttpClient>(new HttpClient(std::move(parts)));
  });
}

HttpClient::HttpClient(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

HttpClient::~HttpClient() {
  Cancel();
  parts_->work.reset();
  parts_->thread.join();
}

void HttpClient::Begin(std::shared_ptr<Exchange> exchange) {
  asio::post(parts_->io, [exchange = std::move(exchange)] { exchange->Run(); });
}

void HttpClient::Get(std::string path, std::shared_ptr<HttpHearer> hearer) {
  Begin(std::make_shared<Exchange>(*parts_, http::verb::get, std::move(path), "", std::move(hearer)));
}

void HttpClient::PostJson(std::string path, std::string body, std::shared_ptr<HttpHearer> hearer) {
  Begin(std::make_shared<Exchange>(*parts_, http::verb::post, std::move(path), std::move(body), std::move(hearer)));
}

void HttpClient::Cancel() {
  asio::post(parts_->io, [parts = parts_.get()] {
    parts->cancelled = true;
    parts->idle.clear();
    for (const auto& exchange : parts->running) exchange->Cancel();
  });
}

}  // namespace runahead
