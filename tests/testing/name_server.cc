#include "tests/testing/name_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace runahead::testing {
namespace {

constexpr size_t kHeader = 12;
constexpr size_t kLongestUdp = 512, kLongestTcp = 65535;

std::string Number16(size_t value) {
  return {static_cast<char>(value >> 8), static_cast<char>(value)};
}

// "a.b" as labels with their lengths.
std::string Labels(const std::string& name) {
  std::string labels;
  for (const std::string& label : std::vector<std::string>(absl::StrSplit(name, '.'))) {
    labels += static_cast<char>(label.size());
    labels += label;
  }
  return labels + std::string(1, '\0');
}

// The name that is asked for, which begins after the header, and where it ends.
std::pair<std::string, size_t> NameIn(const std::string& question) {
  std::vector<std::string> labels;
  size_t at = kHeader;
  while (at < question.size() && question[at] != 0) {
    const size_t length = static_cast<unsigned char>(question[at]);
    labels.push_back(question.substr(at + 1, length));
    at += 1 + length;
  }
  return {absl::StrJoin(labels, "."), at + 1};
}

std::string SrvRecord(const std::string& target) {
  const std::pair<std::string, std::string> host_port = absl::StrSplit(target, ':');
  int port = 0;
  (void)absl::SimpleAtoi(host_port.second, &port);
  const std::string data = Number16(0) + Number16(0) + Number16(port) + Labels(host_port.first);
  return Number16(0xc000 | kHeader) + Number16(33) + Number16(1) + Number16(0) + Number16(0) + Number16(data.size()) +
         data;
}

int BoundSocket(int type, uint16_t port, uint16_t& bound) {
  const int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    close(fd);
    return -1;
  }
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  bound = ntohs(address.sin_port);
  return fd;
}

}  // namespace

NameServer::NameServer() : stop_(eventfd(0, EFD_CLOEXEC)) {
  uint16_t port = 0;
  do {  // until a port is free for both
    udp_ = BoundSocket(SOCK_DGRAM, 0, port);
    tcp_ = BoundSocket(SOCK_STREAM, port, port);
    if (tcp_ < 0) close(udp_);
  } while (tcp_ < 0);
  listen(tcp_, 16);
  address_ = absl::StrCat("127.0.0.1:", port);
  thread_ = std::thread([this] { Run(); });
}

NameServer::~NameServer() {
  const uint64_t one = 1;
  (void)!write(stop_, &one, sizeof one);
  thread_.join();
  for (int fd : {udp_, tcp_, stop_}) close(fd);
}

void NameServer::Set(const std::string& service, std::set<std::string> targets) {
  MutexLock lock(mu_);
  records_[service] = std::move(targets);
}

void NameServer::Fail(bool fails) {
  MutexLock lock(mu_);
  fails_ = fails;
}

int NameServer::asked(const std::string& service) const {
  MutexLock lock(mu_);
  const auto found = asked_.find(service);
  return found == asked_.end() ? 0 : found->second;
}

void NameServer::Run() {
  while (true) {
    pollfd polled[] = {{stop_, POLLIN, 0}, {udp_, POLLIN, 0}, {tcp_, POLLIN, 0}};
    poll(polled, 3, -1);
    if (polled[0].revents != 0) return;
    if (polled[1].revents != 0) {
      char question[kLongestUdp];
      sockaddr_in from{};
      socklen_t length = sizeof from;
      const ssize_t got = recvfrom(udp_, question, sizeof question, 0, reinterpret_cast<sockaddr*>(&from), &length);
      if (got < static_cast<ssize_t>(kHeader)) continue;
      const std::string answer = AnswerTo(std::string(question, static_cast<size_t>(got)), kLongestUdp);
      sendto(udp_, answer.data(), answer.size(), 0, reinterpret_cast<sockaddr*>(&from), length);
    }
    if (polled[2].revents != 0) AnswerTcp();
  }
}

// One question, with its length before it.
void NameServer::AnswerTcp() {
  const int fd = accept(tcp_, nullptr, nullptr);
  unsigned char length[2];
  if (recv(fd, length, 2, MSG_WAITALL) == 2) {
    std::string question(static_cast<size_t>(length[0] << 8 | length[1]), '\0');
    if (recv(fd, question.data(), question.size(), MSG_WAITALL) == static_cast<ssize_t>(question.size())) {
      const std::string answer = AnswerTo(question, kLongestTcp);
      const std::string sent = Number16(answer.size()) + answer;
      (void)!send(fd, sent.data(), sent.size(), MSG_NOSIGNAL);
    }
  }
  close(fd);
}

std::string NameServer::AnswerTo(const std::string& question, size_t longest) {
  constexpr size_t kNoError = 0, kServerFails = 2, kNoSuchName = 3, kTruncated = 0x0200;
  const auto [name, name_end] = NameIn(question);
  MutexLock lock(mu_);
  ++asked_[name];
  const auto found = records_.find(name);
  size_t code = found == records_.end() ? kNoSuchName : kNoError;
  if (fails_) code = kServerFails;
  std::string records;
  size_t count = 0;
  if (code == kNoError) {
    for (const std::string& target : found->second) records += SrvRecord(target);
    count = found->second.size();
  }
  const std::string asked = question.substr(kHeader, name_end + 4 - kHeader);  // with type and class
  size_t flags = 0x8180 | code;
  if (kHeader + asked.size() + records.size() > longest) {
    flags |= kTruncated;
    records.clear();
    count = 0;
  }
  return question.substr(0, 2) + Number16(flags) + Number16(1) + Number16(count) + Number16(0) + Number16(0) + asked +
         records;
}

}  // namespace runahead::testing
