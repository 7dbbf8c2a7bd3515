// Calls whose request is one message (unary, or with a stream of answers), served as streams of bytes: on the wire they
// are the same; bidi_message_call.h has the others. So it is we who decide when a message is read and who say what is
// wrong with one. gRPC itself would read it before anybody has looked at the call, and answer one that cannot be parsed
// with UNIMPLEMENTED and no word.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/byte_budget.h"
#include "server/rpc/arrivals.h"
#include "server/rpc/departures.h"
#include "server/rpc/parse_message.h"
#include "server/rpc/status.h"
#include "server/rpc/transport_options.h"

namespace runahead {

// What a call has to pass until its message is parsed, and on its way out. All of it may be absent.
struct CallDoor {
  // Judges a call by its metadata, before anything of its message is read.
  std::function<absl::Status(const grpc::ServerContextBase&)> admit = nullptr;
  Arrivals* arrivals = nullptr;        // what says when it is read; null: at once
  ByteBudget* memory = nullptr;        // what the parsed message takes is taken of it; null: of none
  Departures* departures = nullptr;    // what bounds unary answers that are not taken; null: nothing does
  int64_t longest = kMaxMessageBytes;  // bytes that a message may have
};

// One such call, whatever its messages are. Deletes itself when gRPC is done with it.
class MessageCall : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                    private Arrivals::Call,
                    private Departures::Call {
 protected:
  // `door` outlives the call.
  MessageCall(grpc::CallbackServerContext& context, const CallDoor& door) : context_(context), door_(door) {}

  // Lets the call in, reads and parses its request, and has it served. The last word of a subclass's constructor.
  void Begin();

  virtual google::protobuf::Message& request() = 0;
  // Calls the service, and binds the reactor that it gave. What is not OK ends the call.
  virtual absl::Status Serve() = 0;
  // The service's reactor is bound: it hears of a cancel and of the end from now on.
  void Bound(grpc::internal::ServerReactor* reactor) RUNAHEAD_EXCLUDES(mu_);

  // An answer of `bytes`, the only one, is to be written: counts it until the call has ended. What is not OK is to be
  // the answer.
  absl::Status Depart(size_t bytes);

  grpc::CallbackServerContext& context() { return context_; }
  ByteBudget::Lease& memory() { return memory_; }  // what the request takes

 private:
  void Read() final { StartRead(&received_); }
  void GiveUp(const absl::Status& why) final;
  void CutOff() final { context_.TryCancel(); }
  absl::Status Parse();
  void OnReadDone(bool ok) final;
  void OnCancel() final RUNAHEAD_EXCLUDES(mu_);
  void OnDone() final;

  grpc::CallbackServerContext& context_;
  const CallDoor& door_;
  grpc::ByteBuffer received_;
  ByteBudget::Lease memory_;
  Mutex mu_;
  grpc::internal::ServerReactor* reactor_ RUNAHEAD_GUARDED_BY(mu_) = nullptr;  // the service's, once bound
  bool cancelled_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

// What a service takes such calls with. The lease is of what the request takes. A unary request, its response and its
// lease are the call's, and gone when the reactor is finished; a stream's request may be moved from.
template <typename Request, typename Response>
using UnaryHandler = std::function<grpc::ServerUnaryReactor*(grpc::CallbackServerContext*, const Request*, Response*,
                                                             ByteBudget::Lease&)>;
template <typename Request, typename Response>
using StreamHandler =
    std::function<grpc::ServerWriteReactor<Response>*(grpc::CallbackServerContext*, Request&, ByteBudget::Lease)>;

template <typename Request, typename Response>
class UnaryMessageCall final : public MessageCall {
 public:
  // `handler` outlives the call.
  UnaryMessageCall(grpc::CallbackServerContext& context, const CallDoor& door,
                   const UnaryHandler<Request, Response>& handler)
      : MessageCall(context, door), handler_(handler), link_(*this) {
    Begin();
  }

 private:
  // What the service's reactor takes for gRPC.
  class Link final : public grpc::ServerCallbackUnary {
   public:
    explicit Link(UnaryMessageCall& call) : call_(call) {}
    void Bind(grpc::ServerUnaryReactor* reactor) { BindReactor(reactor); }
    void Finish(grpc::Status status) override { call_.Answer(std::move(status)); }
    void SendInitialMetadata() override { call_.StartSendInitialMetadata(); }

   private:
    grpc::internal::ServerReactor* reactor() override { return nullptr; }  // both are for gRPC's own calls
    void CallOnDone() override {}
    UnaryMessageCall& call_;
  };

  google::protobuf::Message& request() override { return request_; }
  absl::Status Serve() override {
    grpc::ServerUnaryReactor* const reactor = handler_(&this->context(), &request_, &response_, this->memory());
    if (reactor == nullptr) return absl::UnimplementedError("this server does not serve the method");
    link_.Bind(reactor);
    this->Bound(reactor);
    return absl::OkStatus();
  }
  // Nobody reads the request and the response any more: a client that does not take the answer keeps its bytes only.
  void Answer(grpc::Status status) {
    if (status.ok()) status = SerializeMessage(response_, written_);
    request_ = Request();
    response_ = Response();
    this->memory() = {};
    if (status.ok()) status = ToGrpcStatus(this->Depart(written_.Length()));
    if (!status.ok()) {
      written_.Clear();
      return this->Finish(std::move(status));
    }
    this->StartWriteAndFinish(&written_, {}, std::move(status));
  }

  const UnaryHandler<Request, Response>& handler_;
  Request request_;
  Response response_;
  grpc::ByteBuffer written_;
  Link link_;
};

template <typename Request, typename Response>
class StreamMessageCall final : public MessageCall {
 public:
  // As UnaryMessageCall.
  StreamMessageCall(grpc::CallbackServerContext& context, const CallDoor& door,
                    const StreamHandler<Request, Response>& handler)
      : MessageCall(context, door), handler_(handler), link_(*this) {
    Begin();
  }

 private:
  class Link final : public grpc::ServerCallbackWriter<Response> {
   public:
    explicit Link(StreamMessageCall& call) : call_(call) {}
    void Bind(grpc::ServerWriteReactor<Response>* reactor) {
      reactor_ = reactor;
      this->BindReactor(reactor);
    }
    void Written(bool ok) { reactor_->OnWriteDone(ok); }
    void Finish(grpc::Status status) override { call_.Finish(std::move(status)); }
    void SendInitialMetadata() override { call_.StartSendInitialMetadata(); }
    void Write(const Response* message, grpc::WriteOptions options) override { call_.Send(*message, options); }
    void WriteAndFinish(const Response* message, grpc::WriteOptions options, grpc::Status status) override {
      const grpc::Status serialized = SerializeMessage(*message, call_.written_);
      if (!serialized.ok()) return call_.Finish(serialized);
      call_.StartWriteAndFinish(&call_.written_, options, std::move(status));
    }

   private:
    grpc::internal::ServerReactor* reactor() override { return nullptr; }
    void CallOnDone() override {}
    StreamMessageCall& call_;
    grpc::ServerWriteReactor<Response>* reactor_ = nullptr;
  };

  google::protobuf::Message& request() override { return request_; }
  absl::Status Serve() override {
    grpc::ServerWriteReactor<Response>* const reactor = handler_(&this->context(), request_, std::move(this->memory()));
    if (reactor == nullptr) return absl::UnimplementedError("this server does not serve the method");
    link_.Bind(reactor);
    this->Bound(reactor);
    return absl::OkStatus();
  }
  void Send(const Response& message, grpc::WriteOptions options) {
    // What cannot be serialized is a message of ours without a required field or of 2 GiB: neither exists.
    RUNAHEAD_CHECK(SerializeMessage(message, written_).ok());
    this->StartWrite(&written_, options);
  }
  void OnWriteDone(bool ok) override {
    written_.Clear();
    link_.Written(ok);
  }

  const StreamHandler<Request, Response>& handler_;
  Request request_;
  grpc::ByteBuffer written_;
  Link link_;
};

}  // namespace runahead
