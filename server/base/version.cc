#include "server/base/version.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

// As many bytes as people compare at a glance.
constexpr size_t kShownBytes = 6;

size_t Aligned(size_t bytes) {
  return (bytes + 3) / 4 * 4;
}

// Looks for the build id among the notes of the program, which dl_iterate_phdr names first.
int FindBuildId(dl_phdr_info* program, size_t, void* found) {
  for (int i = 0; i < program->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = program->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const char* note = reinterpret_cast<const char*>(program->dlpi_addr + segment.p_vaddr);
    const char* const end = note + segment.p_memsz;
    while (note + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) header;
      std::memcpy(&header, note, sizeof header);
      const char* const name = note + sizeof header;
      const char* const text = name + Aligned(header.n_namesz);
      if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
        *static_cast<std::string*>(found) = std::string(text, std::min<size_t>(header.n_descsz, kShownBytes));
        return 1;
      }
      note = text + Aligned(header.n_descsz);
    }
  }
  return 1;
}

}  // namespace

absl::string_view Version() {
  return RUNAHEAD_VERSION;
}

std::string BuildId() {
  std::string id;
  dl_iterate_phdr(FindBuildId, &id);
  if (id.empty()) return std::string(Version());
  return absl::StrCat(Version(), " ", absl::BytesToHexString(id));
}

}  // namespace runahead
