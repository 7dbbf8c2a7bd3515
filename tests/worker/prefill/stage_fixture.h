// A small model for the tests of the prefill stage, and what chains of it must give.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/chain_fixture.h"
#include "tests/testing/small_model.h"

namespace runahead {

class StageTest : public ::testing::Test {
 protected:
  StageTest() : loaded_(LoadForTest(WriteSynthetic(SmallModel(), "stage"), DType::kF32, 2)) {}

  int64_t layers() const { return loaded_.model->config().layers; }

  // What the scalar reference makes of the prompt.
  ExpectedRun Reference(const std::vector<int32_t>& ids) const { return ReferenceRun(loaded_, ids); }
  WholeRun RunOn(TestChain& chain, JobId job, const std::vector<int64_t>& bounds, const std::vector<int32_t>& ids) {
    return RunWhole(loaded_, chain, job, bounds, ids);
  }

  const LoadedModel loaded_;
};

}  // namespace runahead
