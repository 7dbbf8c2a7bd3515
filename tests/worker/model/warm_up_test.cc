#include "worker/model/warm_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/pass_device.h"
#include "tests/testing/pass_model.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;

// Notes the passes that it is asked for. `most`: rows of a pass that it finds memory for.
class NotingModel final : public ::runahead::testing::PassModel {
 public:
  NotingModel(int64_t context, int64_t most)
      : PassModel(/*layers=*/1, /*hidden=*/1, /*head_dim=*/1, /*vocab=*/7, context), most_(most) {}
  absl::Status Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor&) const override {
    const auto count = static_cast<int64_t>(ids.size());
    passes.push_back(absl::StrCat(rows.batch_invariant ? "decode " : "", count));
    return count > most_ ? absl::ResourceExhaustedError("no room") : absl::OkStatus();
  }

  mutable std::vector<std::string> passes;

 private:
  const int64_t most_;
};

class WarmUpTest : public ::testing::Test {
 protected:
  std::vector<std::string> Passes(int64_t context, unsigned uses, int64_t most = 1 << 20) {
    const NotingModel model(context, most);
    const absl::StatusOr<WarmUpTimes> times = WarmUp(model, device_, uses);
    status_ = times.status();
    times_ = times.value_or(WarmUpTimes{});
    return model.passes;
  }

  ::runahead::testing::PassDevice device_;  // whose products take 512 rows at once
  absl::Status status_;
  WarmUpTimes times_;
};

TEST_F(WarmUpTest, SaysWhatALayerOfTheLongestPromptAndAStepTook) {
  Passes(4096, kUsePrefill | kUseDecode, 100);
  EXPECT_EQ(times_.tokens, 32) << "the longest one that found memory";
  EXPECT_GT(times_.layer, absl::ZeroDuration());
  EXPECT_GT(times_.step, absl::ZeroDuration());
  Passes(4096, kUseDecode);
  EXPECT_EQ(times_.layer, absl::ZeroDuration());
  EXPECT_GT(times_.step, absl::ZeroDuration());
}

TEST_F(WarmUpTest, CoversFewRowsAndMoreThanAChunk) {
  EXPECT_THAT(Passes(4096, kUsePrefill | kUseDecode), ElementsAre("32", "128", "1023", "decode 1"));
  EXPECT_TRUE(status_.ok()) << status_;
}

TEST_F(WarmUpTest, RunsWhatAWorkerIsForAndAModelTakes) {
  EXPECT_THAT(Passes(4096, kUseDecode), ElementsAre("decode 1"));
  EXPECT_THAT(Passes(40, kUsePrefill), ElementsAre("32", "40"));
  EXPECT_THAT(Passes(5, kUsePrefill), ElementsAre("5"));
}

TEST_F(WarmUpTest, TimesAStepOfSoManySequencesTwice) {
  const NotingModel model(4096, 100);
  EXPECT_GT(*TimeStep(model, device_, 32), absl::ZeroDuration());
  EXPECT_THAT(model.passes, ElementsAre("decode 32", "decode 32"));
  EXPECT_EQ(TimeStep(model, device_, 101).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(WarmUpTest, MemoryForShortPromptsIsEnough) {
  EXPECT_THAT(Passes(4096, kUsePrefill | kUseDecode, 100), ElementsAre("32", "128", "decode 1"));
  EXPECT_TRUE(status_.ok()) << status_;
}

TEST_F(WarmUpTest, MemoryForNoPromptIsNot) {
  EXPECT_THAT(Passes(4096, kUsePrefill, 10), ElementsAre("32"));
  EXPECT_EQ(status_.code(), absl::StatusCode::kResourceExhausted);
  Passes(4096, kUseDecode, 0);
  EXPECT_EQ(status_.code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace runahead
