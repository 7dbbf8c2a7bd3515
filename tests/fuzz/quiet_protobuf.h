// For targets that parse messages: protobuf writes a line about each text in them that is no UTF-8.
#pragma once

#include <google/protobuf/stubs/logging.h>

namespace runahead::fuzz {

// Takes its lines off stderr, as servers do (server/rpc/server.cc).
inline void QuietProtobuf() {
  static const auto before = google::protobuf::SetLogHandler(nullptr);
  (void)before;
}

}  // namespace runahead::fuzz
