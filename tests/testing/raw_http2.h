// A client of gRPC servers that does what no honest one does: calls of which only the headers come, and messages of
// which only a part does. Keeps to HTTP/2, flow control included, or the server would simply hang up.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace runahead::testing {

// One connection. For one thread; what the server says is read by Pump() alone.
class RawHttp2 {
 public:
  // Connects to "host:port" (IPv4) and greets.
  explicit RawHttp2(const std::string& address);
  ~RawHttp2();
  RawHttp2(const RawHttp2&) = delete;
  RawHttp2& operator=(const RawHttp2&) = delete;

  // Sends the headers of a call of "/package.Service/Method". Its stream; 0 when the server has hung up.
  uint32_t Call(const std::string& path);

  // Sends as many of the bytes as the server's windows let it, and returns how many.
  size_t Send(uint32_t stream, absl::string_view bytes);

  // What stands before a message of so many bytes on the stream.
  static std::string Prefix(uint32_t message_bytes);

  // Hears what the server has to say, until nothing has come for `quiet`. False when it has hung up.
  bool Pump(absl::Duration quiet);

  // Calls that the server has ended, and whether it has ended this one.
  size_t ended() const { return ended_; }
  bool Ended(uint32_t stream) const;
  size_t open() const { return streams_.size() - ended_; }
  // What it lets a connection have at once; the largest number where it has not said.
  uint32_t max_streams() const { return max_streams_; }

 private:
  struct Stream {
    int64_t window = 0;
    bool ended = false;
  };
  void Write(absl::string_view bytes);
  void WriteFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload);
  bool TakeFrame();
  void OnSettings(absl::string_view payload);
  void End(uint32_t stream);

  const std::string authority_;
  int socket_;
  bool gone_ = false;  // the server has hung up
  std::string heard_;  // not a whole frame yet
  uint32_t next_stream_ = 1;
  int64_t window_ = 65535;
  int64_t stream_window_ = 65535;  // of one that begins
  uint32_t max_streams_ = UINT32_MAX;
  size_t ended_ = 0;
  std::map<uint32_t, Stream> streams_;
};

}  // namespace runahead::testing
