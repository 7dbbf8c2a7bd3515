#include "server/grammar/xgrammar_messages.h"

#include <stdexcept>

namespace runahead {
namespace {

thread_local XgrammarWarnings* keeper = nullptr;

}  // namespace

XgrammarWarnings::XgrammarWarnings() {
  keeper = this;
}

XgrammarWarnings::~XgrammarWarnings() {
  keeper = nullptr;
}

void XgrammarWarnings::Add(const std::string& message) {
  if (first_.empty()) first_ = message;
}

}  // namespace runahead

// Declared by xgrammar (cpp/support/logging.h) for whoever compiles it with XGRAMMAR_LOG_CUSTOMIZE.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& /*file*/, int /*line*/, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& /*file*/, int /*line*/, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && runahead::keeper != nullptr) runahead::keeper->Add(message);
}

}  // namespace xgrammar
