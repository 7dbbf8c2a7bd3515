// What goes out over an edge's messages.
#include <utility>

#include "worker/link/message/message_wire.h"

namespace runahead {

void MessageWire::SendFrame(const FrameId& id, ConstBufferRef bytes, FrameSum sum, Done done) {
  if (sum.kind != FrameSum::Kind::kHost) sum = {};
  uint64_t number = 0;
  bool offered = false;
  absl::Status why;
  {
    MutexLock lock(mu_);
    why = why_;
    if (why.ok()) {
      ++busy_;
      number = next_++;
      offered = shared_.staging != nullptr && bytes.size > 0;
      sent_.emplace(number, Sent{id, bytes, sum, std::move(done), /*uses=*/offered ? 0 : 1, std::nullopt});
    }
  }
  if (!why.ok()) {
    bytes = {};
    return done(why);
  }
  if (offered) {
    const OfferHeader offer{kOffer, bytes.size, HeaderOf(id, number)};
    bytes = {};
    Post(MessageKind::kEdgeOffer, PackHeader(offer), ConstBufferRef(), [](const absl::Status&) {});
    return End();
  }
  WithSum(number, id, sum, std::move(bytes),
          [self = shared_from_this(), number, id](uint64_t known, ConstBufferRef all) {
            FrameHeader header = HeaderOf(id, number);
            header.sum = known;
            self->Post(MessageKind::kEdgeFrame, PackHeader(header), std::move(all),
                       [self, number](const absl::Status& status) { self->Unused(number, status); });
          });
  End();
}

void MessageWire::WithSum(uint64_t number, const FrameId& id, FrameSum sum, ConstBufferRef bytes,
                          std::function<void(uint64_t, ConstBufferRef)> then) {
  if (sum.kind == FrameSum::Kind::kHost) return then(sum.value, std::move(bytes));
  Begin();
  shared_.summer.SumSent(id, bytes,
                         [self = shared_from_this(), number, bytes, then = std::move(then)](uint64_t is) mutable {
                           {
                             MutexLock lock(self->mu_);
                             self->sent_.at(number).sum = {FrameSum::Kind::kHost, is};  // it is in use
                           }
                           then(is, std::move(bytes));
                           self->End();
                         });
}

void MessageWire::SendAsked(uint64_t number) {
  FrameId id;
  ConstBufferRef bytes;
  FrameSum sum;
  {
    MutexLock lock(mu_);
    const auto found = sent_.find(number);
    if (found == sent_.end() || found->second.answer.has_value()) return;
    ++found->second.uses;
    id = found->second.id;
    bytes = found->second.bytes;
    sum = found->second.sum;
  }
  Done done = [self = shared_from_this(), number](const absl::Status& status) { self->Unused(number, status); };
  if (shared_.staging == nullptr || bytes.size == 0)
    return PostBytes(number, id, sum, std::move(bytes), std::move(done));
  const size_t size = bytes.size;
  OnRoom send = [self = shared_from_this(), number, id, sum, bytes = std::move(bytes)](const BufferRef& room,
                                                                                       Done end) mutable {
    self->shared_.staging->sending->Copy(
        std::move(bytes), room,
        [self, number, id, sum, room = BufferRef(room), end = std::move(end)](const absl::Status& status) mutable {
          if (status.ok()) return self->PostBytes(number, id, sum, std::move(room), end);
          room = {};
          end(status);
        });
  };
  TakeRoom(shared_.staging->sending, size, std::move(done), std::move(send));
}

void MessageWire::PostBytes(uint64_t number, const FrameId& id, FrameSum sum, ConstBufferRef bytes, Done done) {
  WithSum(number, id, sum, std::move(bytes),
          [self = shared_from_this(), number, done = std::move(done)](uint64_t known, ConstBufferRef all) {
            self->Post(MessageKind::kEdgeBytes, PackHeader(BytesHeader{number, known}), std::move(all), done);
          });
}

void MessageWire::Unused(uint64_t number, const absl::Status& status) {
  std::optional<Sent> ended;
  {
    MutexLock lock(mu_);
    Sent& sent = sent_.at(number);
    --sent.uses;
    if (!status.ok() && !sent.answer.has_value()) sent.answer = status;
    ended = TakeIfEnded(number);
  }
  if (ended.has_value()) Ended(*std::move(ended));
}

void MessageWire::OnAnswer(uint64_t number, const absl::Status& answer) {
  std::optional<Sent> ended;
  {
    MutexLock lock(mu_);
    const auto found = sent_.find(number);
    if (found == sent_.end() || found->second.answer.has_value()) return;
    found->second.answer = answer;
    ended = TakeIfEnded(number);
  }
  if (ended.has_value()) Ended(*std::move(ended));
}

std::optional<MessageWire::Sent> MessageWire::TakeIfEnded(uint64_t number) {
  const auto found = sent_.find(number);
  if (found->second.uses > 0 || !found->second.answer.has_value()) return std::nullopt;
  Sent ended = std::move(found->second);
  sent_.erase(found);
  return ended;
}

void MessageWire::Ended(Sent frame) {
  frame.bytes = {};
  frame.done(*frame.answer);
}

}  // namespace runahead
