// What a model makes of a text, token by token, for tests/bench/numerics: reads ids from standard input until its end,
// writes the f32 logits of every position to standard output, one row after the other.
//   logits MODEL [threads] [dtype[+kv dtype]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/bench/dtypes.h"
#include "tests/bench/must.h"
#include "tests/testing/model_fixture.h"
#include "worker/format/open_model.h"
#include "worker/model/model.h"

namespace runahead {
namespace {

constexpr size_t kChunk = 256;  // tokens whose logits are in memory

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: logits MODEL [threads] [dtype[+kv dtype]] < IDS > LOGITS\n");
    return 2;
  }
  CpuDeviceOptions options{.threads = argc > 2 ? std::atoi(argv[2]) : 2};
  LoadedModel loaded;
  loaded.file = Must(OpenModelFile(argv[1]));
  SetDTypes(argc > 3 ? argv[3] : "auto", MostlyQuantised(*loaded.file), options);
  loaded.device = Must(NewCpuDevice(options));
  loaded.model = Must(LoadModel(loaded.file, loaded.device, kUsePrefill | kUseDecode, [](int, int) {}));
  std::vector<int32_t> ids;
  for (int id = 0; std::scanf("%d", &id) == 1;) ids.push_back(id);
  SequenceRunner runner(loaded, static_cast<int64_t>(ids.size()));
  for (size_t begin = 0; begin < ids.size(); begin += kChunk) {
    const std::vector<int32_t> chunk(ids.begin() + begin, ids.begin() + std::min(ids.size(), begin + kChunk));
    for (const std::vector<float>& row : runner.Append(chunk, /*batch_invariant=*/false, /*all_logits=*/true)) {
      std::fwrite(row.data(), sizeof(float), row.size(), stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
