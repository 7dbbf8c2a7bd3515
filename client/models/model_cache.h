// Models that can be had by name: the list of deploy/models, fetched as deploy/model does and into the same cache.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace runahead {

// The text of deploy/models.
extern const char* const kModelList;

struct KnownModel {
  std::string name;  // "smollm2-135m-instruct"
  // The file, or its pieces in order, which the cache has as one.
  struct Piece {
    std::string package;  // Python package and version, as pip takes it
    std::string member;   // path inside the package
  };
  std::vector<Piece> pieces;  // at least one
  std::string sha256;         // of the whole file, in lower-case hexadecimal

  std::string file_name() const;  // in the cache: the first member's without .part00
};

// Reads a list as deploy/models has it. INVALID_ARGUMENT names the line.
absl::StatusOr<std::vector<KnownModel>> ParseModelList(absl::string_view text);

// $XDG_CACHE_HOME/runahead, or ~/.cache/runahead. FAILED_PRECONDITION where there is neither.
absl::StatusOr<std::string> CacheFolder();

// Of a file's content, in lower-case hexadecimal. NOT_FOUND and the like name the file.
absl::StatusOr<std::string> Sha256OfFile(const std::string& path);

// Path of the model in `cache`, after fetching it with pip where it is missing or damaged. Says on stderr what takes
// long. Errors: UNAVAILABLE when it cannot be fetched, DATA_LOSS when what came is something else.
absl::StatusOr<std::string> FetchModel(const KnownModel& model, const std::string& cache);

}  // namespace runahead
