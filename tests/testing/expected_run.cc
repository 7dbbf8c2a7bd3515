#include "tests/testing/expected_run.h"

#include "tests/testing/exactness.h"
#include "tests/testing/reference_llama.h"

namespace runahead {
namespace {

int64_t KvDim(const LoadedModel& loaded) {
  return loaded.model->config().kv_dim();
}

}  // namespace

ExpectedRun ExpectedRun::First(int64_t tokens) const {
  RUNAHEAD_CHECK(static_cast<int64_t>(logits.size()) == this->tokens() && tokens <= this->tokens());
  ExpectedRun first;
  first.kv_dim = kv_dim;
  first.logits.assign(logits.begin(), logits.begin() + tokens);
  for (const std::vector<double>& layer : kv) {
    first.kv.emplace_back(layer.begin(), layer.begin() + tokens * 2 * kv_dim);
  }
  return first;
}

ExpectedRun ReferenceRun(const LoadedModel& loaded, const std::vector<int32_t>& ids) {
  ReferenceOutput output = RunReferenceLlama(*loaded.file, ids);
  return {std::move(output.logits), std::move(output.kv), KvDim(loaded)};
}

ExpectedRun PlainRun(const LoadedModel& loaded, const std::vector<int32_t>& ids) {
  SequenceRunner runner(loaded, static_cast<int64_t>(ids.size()));
  ExpectedRun run;
  run.kv_dim = KvDim(loaded);
  run.logits.push_back(Doubles(runner.Append(ids, /*batch_invariant=*/false, /*all_logits=*/false)[0]));
  for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) {
    run.kv.push_back(Doubles(runner.Kv(layer)));
  }
  return run;
}

}  // namespace runahead
