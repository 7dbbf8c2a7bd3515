#include "server/engine/tokenizer_stream.h"

#include <algorithm>
#include <utility>

#include "server/rpc/status.h"

namespace runahead {

std::shared_ptr<TokenizerStream> TokenizerStream::Create(grpc::CallbackServerContext& context, Holds holds) {
  OpenWrites& open = holds.open;
  std::shared_ptr<TokenizerStream> stream(new TokenizerStream(context, std::move(holds)));
  open.Add("", stream);
  MutexLock lock(stream->mu_);
  stream->itself_ = stream;
  return stream;
}

void TokenizerStream::Send(absl::StatusOr<std::shared_ptr<const SummedArchive>> archive) {
  MutexLock lock(mu_);
  if (!archive.ok()) return End(ToGrpcStatus(archive.status()));
  archive_ = *std::move(archive);
  Next();
}

void TokenizerStream::Next() {
  const std::string& bytes = *archive_->bytes;
  if (sent_ == bytes.size()) return End(grpc::Status::OK);
  const size_t size = std::min(kChunkBytes, bytes.size() - sent_);
  writing_.set_data(bytes.data() + sent_, size);
  sent_ += size;
  if (sent_ == bytes.size()) writing_.set_sha256(archive_->sha256);
  write_began_ = clock_.Now();
  StartWrite(&writing_);
}

void TokenizerStream::OnWriteDone(bool ok) {
  MutexLock lock(mu_);
  write_began_ = absl::InfiniteFuture();
  if (!ok) return End(grpc::Status::CANCELLED);
  Next();
}

void TokenizerStream::End(const grpc::Status& status) {
  memory_ = {};  // before the client hears
  Finish(status);
}

void TokenizerStream::CutIfStalled(absl::Time now, absl::Duration timeout) {
  MutexLock lock(mu_);
  if (context_ != nullptr && now - write_began_ >= timeout) context_->TryCancel();
}

void TokenizerStream::OnDone() {
  open_.Remove("", shared_from_this());
  std::shared_ptr<TokenizerStream> last;  // the end of it, after the lock is given back
  MutexLock lock(mu_);
  last = std::move(itself_);
  context_ = nullptr;
  pass_ = DrainGate::Pass();
}

}  // namespace runahead
