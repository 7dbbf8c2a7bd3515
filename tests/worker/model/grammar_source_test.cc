#include "worker/model/grammar_source.h"

#include <atomic>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/letter_tokenizer.h"

namespace runahead {
namespace {

constexpr int64_t kGrammarVocab = 40;
const StructureSpec kSomeChoice = {.kind = StructureKind::kChoice, .choices = {"ab"}};
const StructureSpec kWrongRegex = {.kind = StructureKind::kRegex, .text = "(a"};

TEST(GrammarSource, CompilesWhatIsWantedAndSaysWhatCannotBe) {
  if (!StructuredOutputStatus().ok()) GTEST_SKIP() << "did not run here: " << StructuredOutputStatus().message();
  std::atomic<int> opened = 0;
  GrammarSource source([&opened] { return ++opened, testing::MakeLetterTokenizer(); }, kGrammarVocab);
  EXPECT_EQ(opened, 0) << "nobody wants a form";
  std::vector<std::shared_ptr<const WantedGrammar>> wanted;
  for (int i = 0; i < 3; ++i) wanted.push_back(source.Want(i == 1 ? kWrongRegex : kSomeChoice));
  EXPECT_EQ(wanted[0]->ready().Wait(), absl::OkStatus());
  ASSERT_NE(wanted[0]->grammar(), nullptr);
  EXPECT_EQ(wanted[1]->ready().Wait().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(wanted[1]->grammar(), nullptr);
  EXPECT_EQ(wanted[2]->ready().Wait(), absl::OkStatus()) << "others go on";
  EXPECT_EQ(wanted[2]->grammar(), wanted[0]->grammar()) << "compiled once";
  EXPECT_EQ(opened, 1);
  EXPECT_TRUE(wanted[0]->grammar()->Begin()->Accept(0).ok());
}

TEST(GrammarSource, ATokenizerThatIsNotThereIsAskedForAgain) {
  if (!StructuredOutputStatus().ok()) GTEST_SKIP() << "did not run here: " << StructuredOutputStatus().message();
  std::atomic<int> opened = 0;
  const auto open = [&opened]() -> absl::StatusOr<std::shared_ptr<const Tokenizer>> {
    if (++opened == 1) return absl::NotFoundError("the file is away");
    return testing::MakeLetterTokenizer();
  };
  GrammarSource source(open, kGrammarVocab);
  EXPECT_EQ(source.Want(kSomeChoice)->ready().Wait(), absl::NotFoundError("the file is away"));
  EXPECT_EQ(source.Want(kSomeChoice)->ready().Wait(), absl::OkStatus());
}

TEST(GrammarSource, WhatIsNotCompiledWhenItEndsIsAborted) {
  EventSource go_on;
  std::vector<std::shared_ptr<const WantedGrammar>> wanted;
  {
    EventSource opening;
    const auto open = [&]() -> absl::StatusOr<std::shared_ptr<const Tokenizer>> {
      opening.Fire(absl::OkStatus());
      EXPECT_TRUE(go_on.event().Wait().ok());
      return absl::NotFoundError("the file is away");
    };
    GrammarSource source(open, kGrammarVocab);
    for (int i = 0; i < 3; ++i) wanted.push_back(source.Want(kSomeChoice));
    EXPECT_TRUE(opening.event().Wait().ok());
    go_on.Fire(absl::OkStatus());
  }
  for (const auto& each : wanted) EXPECT_TRUE(each->ready().fired());
}

// A small form does not wait for one that takes long.
TEST(GrammarSource, FormsAreCompiledBesideALongOne) {
  EventSource compiling, go_on;
  GrammarSource source([&](const StructureSpec& spec) -> absl::StatusOr<std::shared_ptr<const CompiledGrammar>> {
    if (spec.text == "long") {
      compiling.Fire(absl::OkStatus());
      EXPECT_TRUE(go_on.event().Wait().ok());
    }
    return absl::NotFoundError(spec.text);
  });
  const auto first = source.Want({.kind = StructureKind::kRegex, .text = "long"});
  EXPECT_TRUE(compiling.event().Wait().ok());
  for (const std::string text : {"a", "b"}) {
    EXPECT_EQ(source.Want({.kind = StructureKind::kRegex, .text = text})->ready().Wait(), absl::NotFoundError(text));
  }
  EXPECT_FALSE(first->ready().fired());
  go_on.Fire(absl::OkStatus());
  EXPECT_EQ(first->ready().Wait(), absl::NotFoundError("long"));
}

// Its request is gone: whoever comes behind it does not wait for it.
TEST(GrammarSource, WhatNobodyWaitsForAnyMoreIsNotCompiled) {
  EventSource compiling[2], go_on;
  Mutex mu;
  std::vector<std::string> compiled;
  GrammarSource source([&](const StructureSpec& spec) -> absl::StatusOr<std::shared_ptr<const CompiledGrammar>> {
    {
      MutexLock lock(mu);
      compiled.push_back(spec.text);
    }
    if (spec.text != "last") compiling[spec.text == "first" ? 0 : 1].Fire(absl::OkStatus());
    EXPECT_TRUE(go_on.event().Wait().ok());
    return absl::NotFoundError("none");
  });
  const auto first = source.Want({.kind = StructureKind::kRegex, .text = "first"});
  EXPECT_TRUE(compiling[0].event().Wait().ok());
  const auto second = source.Want({.kind = StructureKind::kRegex, .text = "second"});
  EXPECT_TRUE(compiling[1].event().Wait().ok());
  const Event gone = source.Want({.kind = StructureKind::kRegex, .text = "gone"})->ready();
  const auto last = source.Want({.kind = StructureKind::kRegex, .text = "last"});
  go_on.Fire(absl::OkStatus());
  EXPECT_EQ(last->ready().Wait(), absl::NotFoundError("none"));
  EXPECT_EQ(gone.Wait().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(compiled, (std::vector<std::string>{"first", "second", "last"}));
}

}  // namespace
}  // namespace runahead
