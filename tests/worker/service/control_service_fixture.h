// A worker's control service on a clock of the test's own, and a router's end of its streams.
#pragma once

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "server/base/progress_meter.h"
#include "server/rpc/server.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/keeping_handler.h"
#include "tests/testing/known_hearing.h"
#include "worker/service/control_service.h"

namespace runahead::testing {

inline constexpr uint64_t kIncarnation = 4711;

// A router's end of a control stream.
struct Stream {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ControlCommand, v1::ControlReport>> calls;
  explicit Stream(v1::Worker::Stub& stub) : calls(stub.Control(&context)) {}
  void Hello(uint64_t incarnation, uint32_t epoch = 0, uint64_t router = 1) {
    Greet(incarnation, epoch, router, /*resume=*/false, 0);
  }
  void Resume(uint64_t incarnation, uint64_t reports_received, uint64_t router = 1) {
    Greet(incarnation, 0, router, /*resume=*/true, reports_received);
  }
  void Order(v1::ControlCommand command, uint64_t number) {
    command.set_order(number);
    calls->Write(command);
  }
  void Start(uint64_t job, uint64_t number) {
    v1::ControlCommand command;
    command.mutable_start()->set_job(job);
    Order(command, number);
  }
  v1::ControlReport Read() {
    v1::ControlReport report;
    EXPECT_TRUE(calls->Read(&report));
    return report;
  }
  uint64_t Ping(uint64_t number) {
    v1::ControlCommand command;
    command.mutable_ping()->set_number(number);
    calls->Write(command);
    v1::ControlReport report;
    return calls->Read(&report) ? report.pong().number() : 0;
  }
  // The router gives the worker up.
  grpc::Status Goodbye() {
    v1::ControlCommand command;
    command.mutable_goodbye();
    calls->Write(command);
    return End();
  }
  grpc::Status End() {
    calls->WritesDone();
    v1::ControlReport report;
    while (calls->Read(&report)) {
    }
    return calls->Finish();
  }

 private:
  void Greet(uint64_t incarnation, uint32_t epoch, uint64_t router, bool resume, uint64_t reports_received) {
    v1::ControlCommand command;
    command.mutable_hello()->set_router_incarnation(router);
    command.mutable_hello()->set_worker_incarnation(incarnation);
    command.mutable_hello()->set_worker_epoch(epoch);
    command.mutable_hello()->set_resume(resume);
    command.mutable_hello()->set_reports_received(reports_received);
    calls->Write(command);
  }
};

class ControlServiceTest : public ::testing::Test {
 protected:
  ControlServiceTest() {
    v1::Capabilities capabilities;
    capabilities.set_incarnation(kIncarnation);
    capabilities.set_name("prefill-0");
    handler_.SetCapabilities(capabilities);
    service_ = std::make_unique<ControlService>(
        capabilities, handler_, clock_, std::vector<NamedMeter>{{"prefill", meter_}},
        [](uint64_t heard) {
          v1::DecodeLoad load;
          load.set_slots_used(3);
          load.set_evictions(heard + 1);
          return load;
        },
        hearing_);
    RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.services = {service_.get()};
    server_ = *RpcServer::Start(options);
    stub_ = v1::Worker::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  ~ControlServiceTest() override { server_.reset(); }
  // Asks until an epoch has begun.
  v1::Capabilities AwaitCapabilities() {
    while (true) {
      grpc::ClientContext context;
      v1::Capabilities capabilities;
      if (stub_->GetCapabilities(&context, {}, &capabilities).ok()) return capabilities;
    }
  }

  // Time that the service's watch sees pass: too little for a pause.
  void Step() {
    clock_.AwaitWaiters(1);
    clock_.Advance(absl::Milliseconds(100));
  }

  KeepingHandler handler_;
  FakeClock clock_;
  KnownHearing hearing_;
  const std::shared_ptr<ProgressMeter> meter_ = std::make_shared<ProgressMeter>(clock_);
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::Worker::Stub> stub_;
};

}  // namespace runahead::testing
