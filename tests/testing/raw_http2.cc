#include "tests/testing/raw_http2.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"

namespace runahead::testing {
namespace {

// Of RFC 9113.
constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kWindowUpdate = 8;
constexpr uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;
constexpr uint16_t kMaxConcurrentStreams = 3, kInitialWindowSize = 4;
constexpr size_t kFrameHeader = 9, kMaxFrame = 16384;

std::string BigEndian(uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

uint32_t Read(absl::string_view bytes, size_t at, int count) {
  uint32_t value = 0;
  for (int i = 0; i < count; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + static_cast<size_t>(i)]);
  return value;
}

// A header as HPACK writes one that is in no table; both texts are shorter than 127 bytes.
std::string Literal(absl::string_view name, absl::string_view value) {
  RUNAHEAD_CHECK(name.size() < 127 && value.size() < 127);
  return absl::StrCat(std::string(1, '\0'), std::string(1, static_cast<char>(name.size())), name,
                      std::string(1, static_cast<char>(value.size())), value);
}

}  // namespace

RawHttp2::RawHttp2(const std::string& address) : authority_(address), socket_(socket(AF_INET, SOCK_STREAM, 0)) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(address, ':');
  uint32_t port = 0;
  RUNAHEAD_CHECK(absl::SimpleAtoi(parts.second, &port));
  sockaddr_in server{};
  server.sin_family = AF_INET;
  server.sin_port = htons(static_cast<uint16_t>(port));
  RUNAHEAD_CHECK(inet_pton(AF_INET, parts.first.c_str(), &server.sin_addr) == 1);
  gone_ = connect(socket_, reinterpret_cast<const sockaddr*>(&server), sizeof(server)) != 0;
  Write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  WriteFrame(kSettings, 0, 0, "");
}

RawHttp2::~RawHttp2() {
  close(socket_);
}

uint32_t RawHttp2::Call(const std::string& path) {
  const std::string headers = absl::StrCat(Literal(":method", "POST"), Literal(":scheme", "http"),
                                           Literal(":path", path), Literal(":authority", authority_),
                                           Literal("te", "trailers"), Literal("content-type", "application/grpc"));
  const uint32_t stream = next_stream_;
  next_stream_ += 2;
  streams_[stream].window = stream_window_;
  WriteFrame(kHeaders, kEndHeaders, stream, headers);
  return gone_ ? 0 : stream;
}

size_t RawHttp2::Send(uint32_t stream, absl::string_view bytes) {
  Stream& to = streams_.at(stream);
  size_t sent = 0;
  while (sent < bytes.size() && !gone_ && !to.ended) {
    const int64_t fits = std::min({int64_t{kMaxFrame}, window_, to.window, static_cast<int64_t>(bytes.size() - sent)});
    if (fits <= 0) break;
    WriteFrame(kData, 0, stream, bytes.substr(sent, static_cast<size_t>(fits)));
    window_ -= fits;
    to.window -= fits;
    sent += static_cast<size_t>(fits);
  }
  return sent;
}

std::string RawHttp2::Prefix(uint32_t message_bytes) {
  return absl::StrCat(std::string(1, '\0'), BigEndian(message_bytes, 4));
}

bool RawHttp2::Pump(absl::Duration quiet) {
  while (!gone_) {
    pollfd polled{socket_, POLLIN, 0};
    if (poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(quiet))) == 0) break;
    std::array<char, 65536> buffer;
    const ssize_t got = recv(socket_, buffer.data(), buffer.size(), 0);
    if (got <= 0) {
      gone_ = true;
      break;
    }
    heard_.append(buffer.data(), static_cast<size_t>(got));
    while (TakeFrame()) {
    }
  }
  return !gone_;
}

bool RawHttp2::Ended(uint32_t stream) const {
  const auto found = streams_.find(stream);
  return found != streams_.end() && found->second.ended;
}

void RawHttp2::Write(absl::string_view bytes) {
  while (!bytes.empty() && !gone_) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      gone_ = true;
    } else {
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
}

void RawHttp2::WriteFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  Write(absl::StrCat(BigEndian(payload.size(), 3), BigEndian(type, 1), BigEndian(flags, 1), BigEndian(stream, 4),
                     payload));
}

bool RawHttp2::TakeFrame() {
  if (heard_.size() < kFrameHeader) return false;
  const size_t length = Read(heard_, 0, 3);
  if (heard_.size() < kFrameHeader + length) return false;
  const auto type = static_cast<uint8_t>(heard_[3]);
  const auto flags = static_cast<uint8_t>(heard_[4]);
  const uint32_t stream = Read(heard_, 5, 4);
  const std::string payload = heard_.substr(kFrameHeader, length);
  heard_.erase(0, kFrameHeader + length);
  if (type == kSettings && (flags & kAck) == 0) OnSettings(payload);
  if (type == kPing && (flags & kAck) == 0) WriteFrame(kPing, kAck, 0, payload);
  if (type == kWindowUpdate && length == 4) {
    (stream == 0 ? window_ : streams_[stream].window) += Read(payload, 0, 4);
  }
  if (type == kReset || ((type == kData || type == kHeaders) && (flags & kEndStream) != 0)) End(stream);
  return true;
}

void RawHttp2::OnSettings(absl::string_view payload) {
  for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
    const uint32_t key = Read(payload, at, 2), value = Read(payload, at + 2, 4);
    if (key == kMaxConcurrentStreams) max_streams_ = value;
    if (key != kInitialWindowSize) continue;
    for (auto& [number, stream] : streams_) stream.window += value - stream_window_;
    stream_window_ = value;
  }
  WriteFrame(kSettings, kAck, 0, "");
}

void RawHttp2::End(uint32_t stream) {
  Stream& ended = streams_[stream];
  if (!ended.ended) ++ended_;
  ended.ended = true;
}

}  // namespace runahead::testing
