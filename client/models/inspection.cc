#include "client/models/inspection.h"

#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/device.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/chat_template.h"
#include "server/tokenizer/tokenizer.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

std::vector<Inspection::Stored> StoredTypes(const ModelFile& file) {
  std::map<WeightType, Inspection::Stored> by_type;
  for (const FileTensor& tensor : file.tensors()) {
    Inspection::Stored& stored = by_type[tensor.type];
    stored.type = BlockOf(tensor.type).name;
    ++stored.tensors;
    stored.bytes += tensor.data.size();
  }
  std::vector<Inspection::Stored> types;
  for (auto& [type, stored] : by_type) types.push_back(std::move(stored));
  return types;
}

const char* KindName(TokenModel model) {
  switch (model) {
    case TokenModel::kByteBpe:
      return "byte-level BPE";
    case TokenModel::kPieceBpe:
      return "SentencePiece BPE";
    case TokenModel::kUnigram:
      return "SentencePiece unigram";
  }
  return "";
}

absl::Status InspectWords(const ModelFile& file, Inspection& inspection) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::FromModel(file));
  const auto text = [&](std::optional<int32_t> id) { return id ? std::string(tokenizer->TokenBytes(*id)) : ""; };
  inspection.words = Inspection::Words{.kind = KindName(tokenizer->model()),
                                       .tokens = tokenizer->vocab_size(),
                                       .bos = text(tokenizer->bos_id()),
                                       .eos = text(tokenizer->eos_id()),
                                       .adds_bos = tokenizer->adds_bos()};
  inspection.chat_template = ChatTemplate::FromModel(file, *tokenizer).status();
  return absl::OkStatus();
}

// What the CPU's device takes (kernels/cpu/attention.h), which is for a worker to open.
absl::Status CheckHeadsOfCpus(int64_t head_dim) {
  constexpr int64_t kMultiple = 8, kMost = 512;
  if (head_dim % kMultiple == 0 && head_dim <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no: heads have ", head_dim, " elements, and CPUs take multiples of ", kMultiple, " up to ", kMost));
}

absl::Status InspectWeights(std::shared_ptr<const ModelFile> file, Inspection& inspection) {
  RUNAHEAD_ASSIGN_OR_RETURN(inspection.config, ReadModelConfig(*file));
  const std::vector<std::string>& of_keys = inspection.config->remarks;
  inspection.remarks.insert(inspection.remarks.end(), of_keys.begin(), of_keys.end());
  RUNAHEAD_ASSIGN_OR_RETURN(inspection.plan, PlanLoading(std::move(file)));
  inspection.on_cpus = CheckHeadsOfCpus(inspection.config->head_dim);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Inspection> InspectModel(const std::string& path) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const ModelFile> file, OpenModelFile(path));
  Inspection inspection;
  inspection.path = path;
  inspection.is_folder = file->container() == ModelFile::Container::kFolder;
  inspection.files = static_cast<int>(file->parts().size());
  inspection.remarks.assign(file->remarks().begin(), file->remarks().end());
  inspection.architecture = file->GetString("general.architecture").value_or("");
  inspection.stored = StoredTypes(*file);
  inspection.tied = !file->FindTensor("output.weight").ok();
  inspection.quantised = MostlyQuantised(*file);
  inspection.takes_int8 = CheckTakesInt8(*file);
  for (const absl::Status& status : {InspectWeights(file, inspection), InspectWords(*file, inspection)}) {
    if (!status.ok()) inspection.refusals.push_back(status);
  }
  return inspection;
}

std::vector<MemoryNeed> MemoryNeeds(const Inspection& inspection, int64_t context, int64_t batch) {
  const ModelConfig& config = *inspection.config;
  const LoadPlan& plan = *inspection.plan;
  const size_t vectors = plan.floats * sizeof(float);
  std::vector<MemoryNeed> needs;
  const auto add = [&](MemoryNeed need, auto weights_for) {
    need.prefill_weights = weights_for(unsigned{kUsePrefill}).total() + vectors;
    need.decode_weights = weights_for(unsigned{kUseDecode}).total() + vectors;
    need.both_weights = weights_for(kUsePrefill | kUseDecode).total() + vectors;
    need.kv_per_token = 2 * config.layers * config.kv_dim() * DTypeSize(need.kv_dtype);
    need.prefill_kv = need.kv_per_token * context;
    need.decode_kv = need.prefill_kv * batch;
    needs.push_back(std::move(need));
  };
  const auto on_cpu = [&](DType compute, bool int8) {
    return [&plan, compute, int8](unsigned uses) { return BytesOnCpu(plan, compute, int8, uses); };
  };
  if (inspection.takes_int8.ok() && inspection.on_cpus.ok())
    add({.dtype = "int8", .kv_dtype = DType::kF16}, on_cpu(DType::kF32, true));
  if (inspection.on_cpus.ok()) {
    add({.dtype = "bf16", .kv_dtype = DType::kBF16}, on_cpu(DType::kBF16, false));
    add({.dtype = "f32", .kv_dtype = DType::kF32}, on_cpu(DType::kF32, false));
  }
  add({.dtype = "bf16", .on_gpu = true, .kv_dtype = DType::kBF16},
      [&](unsigned) { return BytesOnGpu(plan, DType::kBF16); });
  return needs;
}

}  // namespace runahead
