// The engines that tests of what is built on them run over.
#pragma once

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "server/base/random.h"
#include "worker/link/message_engine_factory.h"

namespace runahead::testing {

// A new life at a new port.
inline std::unique_ptr<MessageEngine> NewEngine(const std::string& transport) {
  auto engine = MakeMessageEngine({RandomBits64(), 0, transport});
  RUNAHEAD_CHECK(engine.ok());
  return *std::move(engine);
}

// A test's parameter: which engine.
class OverEveryTransport : public ::testing::TestWithParam<std::string> {};

inline auto EveryTransport() {
  return ::testing::Values("tcp", "ucx");
}
inline std::string TransportName(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

}  // namespace runahead::testing
