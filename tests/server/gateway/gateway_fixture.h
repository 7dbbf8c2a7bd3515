// A gateway in front of a whole router with fake workers, and a client of it.
#pragma once

#include <httplib.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "server/gateway/gateway_process.h"
#include "tests/testing/await.h"
#include "tests/testing/router_fixture.h"

namespace runahead::testing {

inline constexpr char kHello[] = R"({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 7})";

class GatewayFixture : public RouterFixture {
 protected:
  void StartGateway(const RouterSetup& setup = {}, GatewayOptions options = {}) {
    Start(setup);
    for (const auto& worker : decode_) {
      worker->Change([](FakeBehaviour& behaviour) { behaviour.token = [](int64_t i) { return 65 + int(i); }; });
    }
    options.listen = "127.0.0.1:0";
    options.router = server_->address();
    auto started = GatewayProcess::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    gateway_ = *std::move(started);
    client_ = std::make_unique<httplib::Client>("http://" + gateway_->address());
    client_->set_read_timeout(absl::ToInt64Seconds(LongestWait()));
  }
  void TearDown() override {
    gateway_.reset();
    RouterFixture::TearDown();
  }

  httplib::Result Post(const std::string& path, const std::string& body, const httplib::Headers& headers = {}) {
    return client_->Post(path, headers, body, "application/json");
  }
  // The data of the events of an answer, in order.
  static std::vector<std::string> Events(const std::string& body) {
    std::vector<std::string> events;
    for (absl::string_view line : absl::StrSplit(body, '\n')) {
      if (absl::ConsumePrefix(&line, "data: ")) events.emplace_back(line);
    }
    return events;
  }
  std::string Metrics() const { return httplib::Client("http://" + gateway_->metrics_address()).Get("/metrics")->body; }

  std::unique_ptr<GatewayProcess> gateway_;
  std::unique_ptr<httplib::Client> client_;
};

}  // namespace runahead::testing
