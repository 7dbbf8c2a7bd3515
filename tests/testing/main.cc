// main of the tests that need no GPU. `--source=server/router/waiting_test.cc` runs the tests of that source only: a
// binary holds several, and ctest has an entry for each. Where nothing failed but something was skipped, it says what,
// and the exit code says that not all ran: a pass would hide it.
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using testing::TestInfo;
using testing::TestSuite;
using testing::UnitTest;

constexpr int kUsage = 2;
constexpr int kSkipped = 77;  // as ctest is told

// The gtest filter of all tests that `source`, a path's end, holds.
std::string FilterOf(std::string_view source) {
  std::string filter;
  const UnitTest& all = *UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const TestInfo& test = *suite.GetTestInfo(j);
      if (!std::string_view(test.file()).ends_with(source)) continue;
      filter.append(suite.name()).append(".").append(test.name()).append(":");
    }
  }
  return filter;
}

void PrintSkipped() {
  const UnitTest& all = *UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const TestInfo& test = *suite.GetTestInfo(j);
      if (!test.result()->Skipped()) continue;
      std::string why;
      for (int part = 0; part < test.result()->total_part_count(); ++part) {
        why += test.result()->GetTestPartResult(part).message();
      }
      std::cout << "did not run here: " << suite.name() << "." << test.name() << ": " << why.substr(0, why.find('\n'))
                << "\n";
    }
  }
}

int Main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  constexpr std::string_view kSource = "--source=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::string filter = argument.starts_with(kSource) ? FilterOf(argument.substr(kSource.size())) : "";
    if (filter.empty()) {
      std::cerr << argv[0] << ": no test for '" << argument << "': --source=FILE names a source that it was built of\n";
      return kUsage;
    }
    // As GTEST_FILTER says, "-" and what to leave out; or the one test of a process that a death test has begun.
    const std::string more = testing::GTEST_FLAG(filter);
    if (more != "*" && !more.starts_with('-')) continue;
    testing::GTEST_FLAG(filter) = more.starts_with('-') ? filter + more : filter;
  }
  if (const int result = RUN_ALL_TESTS(); result != 0) return result;
  PrintSkipped();
  return UnitTest::GetInstance()->skipped_test_count() > 0 ? kSkipped : 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
