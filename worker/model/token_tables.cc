#include "worker/model/token_tables.h"

#include "kernels/base/status_macros.h"

namespace runahead {

absl::StatusOr<TokenTables> LoadTokenTables(const TensorLoader& loader, const ModelConfig& config) {
  TokenTables tables;
  RUNAHEAD_ASSIGN_OR_RETURN(tables.embedding, loader.Table("token_embd.weight", config.vocab, config.hidden));
  tables.head = tables.embedding;
  if (loader.file().FindTensor("output.weight").ok()) {
    RUNAHEAD_ASSIGN_OR_RETURN(tables.head, loader.Table("output.weight", config.vocab, config.hidden));
  }
  return tables;
}

}  // namespace runahead
