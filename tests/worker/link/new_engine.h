// The engine that tests of what is built on engines run over.
#pragma once

#include <memory>

#include "kernels/base/status_macros.h"
#include "server/base/random.h"
#include "worker/link/tcp/tcp_engine.h"

namespace runahead::testing {

// A new life at a new port.
inline std::unique_ptr<MessageEngine> NewEngine() {
  auto engine = TcpEngine::Start({RandomBits64()});
  RUNAHEAD_CHECK(engine.ok());
  return *std::move(engine);
}

}  // namespace runahead::testing
