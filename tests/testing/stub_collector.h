// A collector of OpenTelemetry, as far as it takes traces over HTTP: it keeps what comes.
#pragma once

#include <httplib.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "tests/testing/await.h"

namespace runahead::testing {

// Thread-safe.
class StubCollector {
 public:
  // What it answers to the post of this index, from 0.
  using Answering = std::function<void(size_t, httplib::Response&)>;

  explicit StubCollector(Answering answering = nullptr) : answering_(std::move(answering)) {
    server_.Post("/v1/traces", [this](const httplib::Request& request, httplib::Response& response) {
      size_t index = 0;
      {
        MutexLock lock(mu_);
        index = posts_.size();
        posts_.push_back(request);
      }
      response.set_content("{}", "application/json");
      if (answering_ != nullptr) answering_(index, response);
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    EXPECT_TRUE(Await("the collector listens", [&] { return server_.is_running(); }));
  }
  ~StubCollector() { Close(); }

  // Nobody answers at its port any more.
  void Close() {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_); }
  int port() const { return port_; }
  std::vector<httplib::Request> posts() const {
    MutexLock lock(mu_);
    return posts_;
  }
  // All spans of all posts, each with `service` and `instance` of its resource beside its own members.
  std::vector<nlohmann::json> spans() const {
    std::vector<nlohmann::json> spans;
    for (const httplib::Request& post : posts()) {
      const nlohmann::json request = nlohmann::json::parse(post.body, nullptr, false);
      for (const nlohmann::json& element : request.at("resourceSpans")) {
        for (nlohmann::json span : element.at("scopeSpans").at(0).at("spans")) {
          span["service"] = Text(element.at("resource"), "service.name");
          span["instance"] = Text(element.at("resource"), "service.instance.id");
          spans.push_back(std::move(span));
        }
      }
    }
    return spans;
  }

  // Of a span or a resource, the attribute's text; a number as it is written. Empty where it is absent.
  static std::string Text(const nlohmann::json& of, const std::string& key) {
    for (const nlohmann::json& attribute : of.at("attributes")) {
      if (attribute.at("key") != key) continue;
      const nlohmann::json& value = attribute.at("value").begin().value();
      return value.is_string() ? value.get<std::string>() : value.dump();
    }
    return "";
  }

 private:
  const Answering answering_;
  mutable Mutex mu_;
  std::vector<httplib::Request> posts_ RUNAHEAD_GUARDED_BY(mu_);
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace runahead::testing
