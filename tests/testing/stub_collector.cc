#include "tests/testing/stub_collector.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/await.h"

namespace runahead::testing {
namespace {

std::map<std::string, std::string> CollectedAttributes(const nlohmann::json& of) {
  std::map<std::string, std::string> attributes;
  for (const nlohmann::json& attribute : of.at("attributes")) {
    const nlohmann::json& value = attribute.at("value").begin().value();
    attributes[attribute.at("key")] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return attributes;
}

// A socket that has a port of this machine, which it shares with those of this user that ask for the same one.
int HeldSocket(int& port) {
  const int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  EXPECT_EQ(setsockopt(held, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof(yes)), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(held, generic, length), 0);
  EXPECT_EQ(getsockname(held, generic, &length), 0);
  port = ntohs(address.sin_port);
  return held;
}

}  // namespace

StubCollector::StubCollector(Answering answering) : answering_(std::move(answering)) {
  server_.Post("/v1/traces", [this](const httplib::Request& request, httplib::Response& response) {
    size_t index = 0;
    {
      MutexLock lock(mu_);
      index = posts_.size();
      posts_.push_back(request);
    }
    response.set_content("{}", "application/json");
    if (answering_ != nullptr) answering_(index, request.body, response);
  });
  held_ = HeldSocket(port_);
  EXPECT_TRUE(server_.bind_to_port("127.0.0.1", port_));
  thread_ = std::thread([this] { server_.listen_after_bind(); });
  EXPECT_TRUE(Await("the collector listens", [&] { return server_.is_running(); }));
}

StubCollector::~StubCollector() {
  Close();
  close(held_);
}

void StubCollector::Close() {
  if (!thread_.joinable()) return;
  server_.stop();
  thread_.join();
}

std::string StubCollector::url() const {
  return absl::StrCat("http://127.0.0.1:", port_);
}

std::vector<httplib::Request> StubCollector::posts() const {
  MutexLock lock(mu_);
  return posts_;
}

std::vector<CollectedSpan> StubCollector::spans() const {
  std::vector<CollectedSpan> spans;
  for (const httplib::Request& post : posts()) {
    const nlohmann::json request = nlohmann::json::parse(post.body, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(request.is_object()) << post.body;
    if (!request.is_object()) continue;
    for (const nlohmann::json& element : request.at("resourceSpans")) {
      const auto resource = CollectedAttributes(element.at("resource"));
      for (const nlohmann::json& span : element.at("scopeSpans").at(0).at("spans")) {
        spans.push_back({resource.at("service.name"), resource.at("service.instance.id"), span.at("traceId"),
                         span.at("spanId"), span.value("parentSpanId", ""), span.at("name"),
                         CollectedAttributes(span)});
      }
    }
  }
  return spans;
}

}  // namespace runahead::testing
