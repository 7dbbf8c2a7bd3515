// Calls whose messages go both ways, served as streams of bytes as message_call.h does it for the others: each message
// comes through the door, and one that cannot be parsed is an error that says so. gRPC itself would take it for the end
// of the stream.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <functional>

#include "absl/status/status.h"
#include "kernels/base/mutex.h"
#include "server/rpc/message_call.h"

namespace runahead {

// One such call, whatever its messages are. Deletes itself when gRPC is done with it.
class BidiCall : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                 private Arrivals::Call,
                 private Departures::Call {
 protected:
  // `door` outlives the call.
  BidiCall(grpc::CallbackServerContext& context, const CallDoor& door) : context_(context), door_(door) {}

  // Lets the call in, and has it served. The last word of a subclass's constructor.
  void Begin();
  // Calls the service, and binds the reactor that it gave; null where it gave none.
  virtual grpc::internal::ServerReactor* Serve() = 0;
  // The reactor's reactions. That a message was refused, or an answer cannot go, is the end of the stream for it.
  virtual void Received(bool ok) = 0;
  virtual void Sent(bool ok) = 0;

  // What the reactor starts. It reads in its constructor and in its reactions, where it holds no lock.
  void Receive(google::protobuf::Message& into);
  void Send(const google::protobuf::Message& message, grpc::WriteOptions options);
  void SendLast(const google::protobuf::Message& message, grpc::WriteOptions options, grpc::Status status);
  // With this status, unless a message was refused: then with the reason.
  void End(grpc::Status status) RUNAHEAD_EXCLUDES(mu_);

  grpc::CallbackServerContext& context() { return context_; }

 private:
  void Next();
  void Read() final { StartRead(&received_); }
  void GiveUp(const absl::Status& why) final;
  void CutOff() final { context_.TryCancel(); }
  absl::Status Parse();
  void Remember(const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);
  void OnReadDone(bool ok) final;
  void OnWriteDone(bool ok) final;
  void OnCancel() final;
  void OnDone() final;

  grpc::CallbackServerContext& context_;
  const CallDoor& door_;
  grpc::internal::ServerReactor* reactor_ = nullptr;  // the service's; does not change once the call has begun
  google::protobuf::Message* into_ = nullptr;         // where the message that is wanted goes
  grpc::ByteBuffer received_;
  grpc::ByteBuffer written_;
  Mutex mu_;
  absl::Status refused_ RUNAHEAD_GUARDED_BY(mu_);
};

template <typename Request, typename Response>
using BidiHandler = std::function<grpc::ServerBidiReactor<Request, Response>*(grpc::CallbackServerContext*)>;

template <typename Request, typename Response>
class BidiMessageCall final : public BidiCall {
 public:
  // `handler` outlives the call.
  BidiMessageCall(grpc::CallbackServerContext& context, const CallDoor& door,
                  const BidiHandler<Request, Response>& handler)
      : BidiCall(context, door), handler_(handler), link_(*this) {
    Begin();
  }

 private:
  // What the service's reactor takes for gRPC.
  class Link final : public grpc::ServerCallbackReaderWriter<Request, Response> {
   public:
    explicit Link(BidiMessageCall& call) : call_(call) {}
    void Bind(grpc::ServerBidiReactor<Request, Response>* reactor) { this->BindReactor(reactor); }
    void Finish(grpc::Status status) override { call_.End(std::move(status)); }
    void SendInitialMetadata() override { call_.StartSendInitialMetadata(); }
    void Read(Request* message) override { call_.Receive(*message); }
    void Write(const Response* message, grpc::WriteOptions options) override { call_.Send(*message, options); }
    void WriteAndFinish(const Response* message, grpc::WriteOptions options, grpc::Status status) override {
      call_.SendLast(*message, options, std::move(status));
    }

   private:
    grpc::internal::ServerReactor* reactor() override { return nullptr; }  // both are for gRPC's own calls
    void CallOnDone() override {}
    BidiMessageCall& call_;
  };

  grpc::internal::ServerReactor* Serve() override {
    reactor_ = handler_(&this->context());
    if (reactor_ != nullptr) link_.Bind(reactor_);
    return reactor_;
  }
  void Received(bool ok) override { reactor_->OnReadDone(ok); }
  void Sent(bool ok) override { reactor_->OnWriteDone(ok); }

  const BidiHandler<Request, Response>& handler_;
  grpc::ServerBidiReactor<Request, Response>* reactor_ = nullptr;
  Link link_;
};

}  // namespace runahead
