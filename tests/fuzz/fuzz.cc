#include "tests/fuzz/fuzz.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace runahead::fuzz {
namespace {

// Names of keys and tensors are cut in messages; a file's path and some names of them fit.
constexpr size_t kLongestMessage = 8192;

// Whether it is UTF-8 without control characters. Apart from server/tokenizer/utf8.h, which is under test, too.
bool IsPlainText(std::string_view text) {
  size_t more = 0;
  for (const char each : text) {
    const auto byte = static_cast<uint8_t>(each);
    if (more > 0) {
      if ((byte & 0xC0) != 0x80) return false;
      --more;
    } else if (byte < 0x20 || byte == 0x7F || (byte >= 0x80 && byte < 0xC2) || byte > 0xF4) {
      return false;
    } else if (byte >= 0x80) {
      more = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : 1;
    }
  }
  return more == 0;
}

struct RemovedFolder {
  RemovedFolder() {
    const char* within = std::getenv("TEST_TMPDIR");
    path = std::string(within != nullptr ? within : "/tmp") + "/fuzz-XXXXXX";
    RUNAHEAD_CHECK(mkdtemp(path.data()) != nullptr);
  }
  ~RemovedFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

}  // namespace

std::vector<std::string_view> Pieces(std::string_view input, size_t count) {
  std::vector<std::string_view> pieces(count);
  for (std::string_view& piece : pieces) {
    const size_t end = input.find(kBorder);
    piece = input.substr(0, end);
    input = end == std::string_view::npos ? std::string_view() : input.substr(end + kBorder.size());
  }
  return pieces;
}

void CheckRefusal(const absl::Status& status, std::string_view where) {
  RUNAHEAD_CHECK(!status.ok());
  const std::string_view message(status.message().data(), status.message().size());
  const bool good = message.size() > where.size() && message.starts_with(where) && message.size() <= kLongestMessage &&
                    IsPlainText(message);
  if (!good) std::fprintf(stderr, "the error: %s\n", status.ToString().c_str());
  RUNAHEAD_CHECK(good);
}

const std::string& Folder() {
  static const RemovedFolder folder;
  return folder.path;
}

std::string WriteFile(const std::string& name, std::string_view content) {
  const std::string path = Folder() + "/" + name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  RUNAHEAD_CHECK(file.good());
  return path;
}

}  // namespace runahead::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  runahead::Fuzz({reinterpret_cast<const char*>(data), size});
  return 0;
}
