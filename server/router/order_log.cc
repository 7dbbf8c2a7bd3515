#include "server/router/order_log.h"

#include <utility>

namespace runahead {

void OrderLog::Write(v1::ControlCommand command) {
  MutexLock lock(mu_);
  command.set_order(orders_.next());
  if (stream_ != nullptr) stream_->Write(command);
  orders_.Append(std::move(command));
}

bool OrderLog::CarryBy(std::shared_ptr<CommandSink> stream, uint64_t received) {
  MutexLock lock(mu_);
  if (!orders_.Acknowledge(received)) return false;
  stream_ = std::move(stream);
  for (const v1::ControlCommand& order : orders_.kept()) stream_->Write(order);
  return true;
}

void OrderLog::Interrupt() {
  MutexLock lock(mu_);
  stream_.reset();
}

void OrderLog::Acknowledge(uint64_t received) {
  MutexLock lock(mu_);
  orders_.Acknowledge(received);
}

}  // namespace runahead
