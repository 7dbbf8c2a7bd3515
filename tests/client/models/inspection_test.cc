// `runahead models --inspect`, as functions and as a program.
#include "client/models/inspection.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/models/inspection_output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/synthetic_folder.h"
#include "tests/testing/test_process.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TestProcess;
using Json = nlohmann::json;

// What the program says, and how it ends.
struct Said {
  int code;
  std::string out, err;
};
Said RunModels(std::vector<std::string> args) {
  args.insert(args.begin(), {RUNAHEAD_BINARY, "models"});
  TestProcess process(args);
  const int code = process.Wait();
  return {code, process.out(), process.err()};
}

SyntheticModel Quantised() {
  SyntheticModel model;
  model.tied = false;
  model.SetWeightType(WeightType::kQ4_0);
  return model;
}

// Checkpoints of tests/golden/data/layouts.
TEST(Inspection, SaysHowManyFilesAModelIsInAndWhatIsLeftOutOfThem) {
  const std::string layouts = "tests/golden/data/layouts/";
  const auto split = InspectModel(layouts + "split-00001-of-00003.gguf");
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_TRUE(split->plan.has_value());
  EXPECT_THAT(InspectionText(*split, 0, 1), HasSubstr("llama, 3 GGUF files\n"));
  EXPECT_EQ(Json::parse(InspectionJson(*split, 0, 1)).at("files"), 3);
  const Said second = RunModels({"--inspect", layouts + "split-00002-of-00003.gguf"});
  EXPECT_NE(second.code, 0);
  EXPECT_THAT(second.err, HasSubstr("give the first, " + layouts + "split-00001-of-00003.gguf"));

  const auto own_head = InspectModel(layouts + "own_head");
  ASSERT_TRUE(own_head.ok()) << own_head.status();
  EXPECT_FALSE(own_head->tied);
  EXPECT_THAT(InspectionText(*own_head, 0, 1), HasSubstr("differs from it: that head is used"));
  EXPECT_THAT(Json::parse(InspectionJson(*own_head, 0, 1)).at("remarks").at(0).get<std::string>(),
              HasSubstr("tie_word_embeddings"));
}

TEST(Inspection, SaysWhatAFileIs) {
  const auto inspection = InspectModel(WriteSynthetic(Quantised(), "inspected"));
  ASSERT_TRUE(inspection.ok()) << inspection.status();
  EXPECT_TRUE(inspection->runs());
  EXPECT_FALSE(inspection->is_folder);
  EXPECT_EQ(inspection->architecture, "llama");
  EXPECT_FALSE(inspection->tied);
  EXPECT_TRUE(inspection->quantised);
  ASSERT_EQ(inspection->stored.size(), 2u);
  EXPECT_EQ(inspection->stored[0].type, "F32");
  EXPECT_EQ(inspection->stored[0].tensors, 5);  // norms
  EXPECT_EQ(inspection->stored[1].type, "Q4_0");
  EXPECT_EQ(inspection->stored[1].tensors, 2 + 2 * 7);
  EXPECT_EQ(inspection->words->kind, "byte-level BPE");
  EXPECT_EQ(inspection->words->tokens, 320);
  EXPECT_TRUE(inspection->chat_template.ok());
}

TEST(Inspection, SaysThatNamesAndTablesAreNotAsTheFileHasThem) {
  SyntheticModel model;
  model.name = "Mod\xe8le";
  model.tokens = 300;
  const std::string path = WriteSynthetic(model, "inspected_padded");
  const Inspection inspection = *InspectModel(path);
  EXPECT_THAT(InspectionText(inspection, 0, 1),
              AllOf(HasSubstr("name           Mod\\xe8le\n"), HasSubstr("vocabulary 320"),
                    HasSubstr("300 tokens (the model's last 20 ids have no text)"), HasSubstr("is called Mod\\xe8le")));
  EXPECT_EQ(Json::parse(InspectionJson(inspection, 0, 1)).at("config").at("name"), "Mod\\xe8le");
  for (const auto& [ids, code] : {std::pair("319", 0), {"320", 1}}) {
    TestProcess process({RUNAHEAD_BINARY, "detokenize", "--model", path, "--json", ids});
    EXPECT_EQ(process.Wait(), code) << process.err();
    EXPECT_EQ(process.out(), code == 0 ? "{\"text\":\"\"}\n" : "");
  }
}

TEST(Inspection, CountsMemoryForEachWayToCompute) {
  const Inspection inspection = *InspectModel(WriteSynthetic(Quantised(), "inspected"));
  const std::vector<MemoryNeed> needs = MemoryNeeds(inspection, 1000, 3);
  std::vector<std::string> dtypes;
  for (const MemoryNeed& need : needs) {
    dtypes.push_back(need.dtype);
    const size_t row = 2 * 2 * 32 * DTypeSize(need.kv_dtype);  // K and V of two layers, two heads of 16
    EXPECT_EQ(need.kv_per_token, row);
    EXPECT_EQ(need.prefill_kv, 1000 * row);
    EXPECT_EQ(need.decode_kv, 3000 * row);
  }
  EXPECT_THAT(dtypes, ElementsAre("int8", "bf16", "f32", "bf16"));
  EXPECT_TRUE(needs[3].on_gpu);
  EXPECT_EQ(needs[0].both_weights, needs[0].decode_weights);  // one form serves both
  EXPECT_GT(needs[2].both_weights, needs[2].prefill_weights);
  EXPECT_GT(needs[2].prefill_weights, needs[1].prefill_weights);
}

// What a worker takes with --dtype int8 is listed, and what it refuses is not.
TEST(Inspection, ListsInt8WhereSomeMatrixIsQuantised) {
  SyntheticModel model;
  const std::string plain = WriteSynthetic(model, "inspected_plain");
  EXPECT_EQ(MemoryNeeds(*InspectModel(plain), 100, 1)[0].dtype, "bf16");
  EXPECT_THAT(RunModels({"--inspect", plain}).out,
              AllOf(HasSubstr("takes bf16 or f32 on CPUs"), HasSubstr("No matrix is quantised: int8 is refused")));
  model.embedding_type = WeightType::kQ8_0;
  const std::string some = WriteSynthetic(model, "inspected_some");
  EXPECT_EQ(MemoryNeeds(*InspectModel(some), 100, 1)[0].dtype, "int8");
  EXPECT_THAT(RunModels({"--inspect", some}).out,
              AllOf(HasSubstr("\n  int8 "), HasSubstr("takes bf16 or f32 on CPUs"), Not(HasSubstr("refused"))));
  EXPECT_THAT(RunModels({"--inspect", WriteSynthetic(Quantised(), "inspected")}).out,
              HasSubstr("takes int8 on CPUs without AMX"));
}

TEST(Inspection, SaysWhatInt8LeavesOut) {
  SyntheticModel model = Quantised();
  const auto said = [&] { return RunModels({"--inspect", WriteSynthetic(model, "inspected_mixed")}).out; };
  EXPECT_THAT(said(), Not(HasSubstr("With int8")));
  model.finer_type = WeightType::kF16;
  EXPECT_THAT(said(), HasSubstr("  With int8 2 matrices are multiplied in f32, not in 8 bits"));
}

TEST(Inspection, ListsAllThatKeepsAModelFromRunning) {
  GgufBuilder builder;
  builder.AddString("general.architecture", "rwkv7");
  builder.AddTensor("token_embd.weight", WeightType::kF32, {32, 2}, std::string(256, '\0'));
  const std::string path = ::testing::TempDir() + "rwkv.gguf";
  ASSERT_TRUE(builder.Write(path).ok());
  const Inspection inspection = *InspectModel(path);
  EXPECT_EQ(inspection.architecture, "rwkv7");
  ASSERT_EQ(inspection.refusals.size(), 2u);
  EXPECT_THAT(std::string(inspection.refusals[0].message()), AllOf(HasSubstr("'rwkv7'"), HasSubstr("qwen3")));
  EXPECT_THAT(std::string(inspection.refusals[1].message()), HasSubstr("tokenizer"));

  const Said said = RunModels({"--inspect", path});
  EXPECT_EQ(said.code, 1);
  EXPECT_THAT(said.out, AllOf(HasSubstr("architecture   rwkv7, a GGUF file"), HasSubstr("runs           no"),
                              HasSubstr("'rwkv7' is not supported"), Not(HasSubstr("Memory"))));
}

TEST(Inspection, OfAFolderIsThatOfItsFile) {
  SyntheticModel model;
  model.family = SyntheticFamily::kGemma3;
  model.layers = 6;
  model.window = 16;
  const std::string gguf = WriteSynthetic(model, "inspected_gemma");
  const std::string folder = ::testing::TempDir() + "inspected_folder";
  WriteSyntheticFolder(**OpenGguf(gguf), folder, {.type = WeightType::kBF16, .shards = 2});
  const Inspection of_file = *InspectModel(gguf), of_folder = *InspectModel(folder);
  EXPECT_TRUE(of_folder.is_folder);
  EXPECT_EQ(of_folder.config->windows, of_file.config->windows);
  EXPECT_EQ(of_folder.plan->elements(), of_file.plan->elements());
  ASSERT_EQ(of_folder.refusals.size(), 1u);  // this folder has no tokenizer.json
  EXPECT_THAT(std::string(of_folder.refusals[0].message()), HasSubstr("has no tokenizer.json"));
  EXPECT_THAT(RunModels({"--inspect", folder}).out,
              AllOf(HasSubstr("gemma3, a Hugging Face folder"), HasSubstr("6, 5 of them see the last 16 tokens"),
                    HasSubstr("BF16 ")));
}

TEST(Inspection, KnowsHeadsThatCpusDoNotTake) {
  SyntheticModel model;
  model.head_dim = 20;
  const std::string path = WriteSynthetic(model, "inspected_heads");
  EXPECT_EQ(MemoryNeeds(*InspectModel(path), 100, 1).size(), 1u);  // a GPU's
  const Said said = RunModels({"--inspect", path});
  EXPECT_EQ(said.code, 0);
  EXPECT_THAT(said.out, AllOf(HasSubstr("on CPUs        no: heads have 20 elements"), Not(HasSubstr("  f32 "))));
}

TEST(Inspection, PrintsNothingThatATerminalObeys) {
  GgufBuilder builder;
  builder.AddString("general.architecture", "llama\x1b[2J\u009b" + std::string(1 << 20, 'x'));
  const std::string path = ::testing::TempDir() + "escapes.gguf";
  ASSERT_TRUE(builder.Write(path).ok());
  const std::string out = RunModels({"--inspect", path}).out;
  EXPECT_THAT(out, AllOf(HasSubstr("llama\\x1b[2J\\xc2\\x9b"), Not(HasSubstr("\x1b"))));
  EXPECT_LT(out.size(), 10000u);
}

TEST(Inspection, IsOneJsonObject) {
  const Said said =
      RunModels({"--inspect", WriteSynthetic(Quantised(), "inspected"), "--context", "1000", "--batch", "3", "--json"});
  ASSERT_EQ(said.code, 0) << said.err;
  const Json json = Json::parse(said.out);
  EXPECT_TRUE(json["runs"]);
  EXPECT_THAT(json["refusals"], IsEmpty());
  EXPECT_EQ(json["config"]["layers"], 2);
  EXPECT_EQ(json["tokenizer"]["chats"], true);
  EXPECT_EQ(json["memory"]["context"], 1000);
  EXPECT_EQ(json["memory"]["batch"], 3);
  EXPECT_EQ(json["memory"]["needs"][0]["dtype"], "int8");
  EXPECT_EQ(json["memory"]["needs"][0]["decode_kv_bytes"], 3000 * 2 * 2 * 32 * 2);
}

TEST(Inspection, SaysWhatIsWrongWithTheCommandLine) {
  const std::string path = WriteSynthetic(Quantised(), "inspected");
  EXPECT_EQ(RunModels({}).code, 2);
  EXPECT_EQ(RunModels({"--inspect", path, "--router", "localhost:1"}).code, 2);
  EXPECT_EQ(RunModels({"--router", "localhost:1", "--batch", "2"}).code, 2);
  EXPECT_THAT(RunModels({"--inspect", path, "--batch", "0"}).err, HasSubstr("--batch: 0 is out of range"));
  EXPECT_THAT(RunModels({"--inspect", path, "--context", "9999999999"}).err, HasSubstr("--context"));
  EXPECT_THAT(RunModels({"--inspect", path, "--context", "4097"}).err, HasSubstr("the model's context, 4096"));
  const Said missing = RunModels({"--inspect", path + ".none"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr(path + ".none"));
}

TEST(Inspection, NamesThePlaceInADamagedFile) {
  const std::string path = WriteSynthetic(Quantised(), "inspected"), cut = ::testing::TempDir() + "cut.gguf";
  std::filesystem::copy_file(path, cut, std::filesystem::copy_options::overwrite_existing);
  std::filesystem::resize_file(cut, std::filesystem::file_size(path) - 100);
  const Said said = RunModels({"--inspect", cut});
  EXPECT_EQ(said.code, 1);
  EXPECT_THAT(said.err, AllOf(HasSubstr(cut), HasSubstr("tensor")));
}

}  // namespace
}  // namespace runahead
