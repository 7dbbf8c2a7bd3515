// Where `tokenize` and `detokenize` find a vocabulary: in a model's file, or at a router.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/base/router_flags.h"

namespace CLI {
class App;
}

namespace runahead {

inline constexpr absl::Duration kVocabularyTimeout = absl::Seconds(60);  // of a call to the router

struct VocabularySource {
  std::string model;  // a path, or
  RouterFlags router;

  // Keeps references into *this.
  void AddTo(CLI::App& app);
  // After parsing: INVALID_ARGUMENT unless one of them is there, and the router's address is one.
  absl::Status Check() const;
  bool by_model() const { return router.address.empty(); }
};

}  // namespace runahead
