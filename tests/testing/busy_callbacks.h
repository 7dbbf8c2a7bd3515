// gRPC's threads held up, as by a flood of calls: nothing that comes to this process is read.
#pragma once

#include <grpc/support/cpu.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "tests/testing/await_change.h"

namespace runahead::testing {

// Until it is freed, no callback of gRPC's runs in this process. Each of its own calls takes one of the threads, of
// which gRPC 1.51 has one for two cores: two at least, sixteen at the most.
class BusyCallbacks {
 public:
  BusyCallbacks() : service_(*this) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
    for (Call& call : calls_) {
      stub_->UnaryCall(&call.context, "/busy/Callback", {}, &call.request, &call.response, [this](const grpc::Status&) {
        MutexLock lock(mu_);
        ++ended_;
        changed_.NotifyAll();
      });
    }
    const int threads = std::clamp(static_cast<int>(gpr_cpu_num_cores()) / 2, 2, static_cast<int>(calls_.size()));
    MutexLock lock(mu_);
    ChangeWait wait(absl::StrCat(threads, " callbacks are held"));
    while (held_ < threads) {
      if (!wait.Next(mu_, changed_)) break;
    }
  }
  ~BusyCallbacks() {
    Free();
    {
      MutexLock lock(mu_);
      ChangeWait wait("the held calls have ended");
      while (ended_ < static_cast<int>(calls_.size())) {
        if (!wait.Next(mu_, changed_)) break;
      }
    }
    stub_.reset();
    server_->Shutdown();
    server_->Wait();
  }

  // Any thread.
  void Free() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    free_ = true;
    changed_.NotifyAll();
  }

 private:
  struct Call {
    grpc::ClientContext context;
    grpc::Slice nothing;
    grpc::ByteBuffer request{&nothing, 1}, response;
  };
  class Service final : public grpc::CallbackGenericService {
   public:
    explicit Service(BusyCallbacks& busy) : busy_(busy) {}
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
      busy_.Hold();
      return CallbackGenericService::CreateReactor(context);
    }

   private:
    BusyCallbacks& busy_;
  };

  void Hold() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ++held_;
    changed_.NotifyAll();
    ChangeWait wait("the test frees the callbacks");
    while (!free_) {
      if (!wait.Next(mu_, changed_)) break;
    }
  }

  Mutex mu_;
  CondVar changed_;
  int held_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int ended_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool free_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::array<Call, 16> calls_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

}  // namespace runahead::testing
