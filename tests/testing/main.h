// What a test binary may do before its tests.
#pragma once

namespace runahead {

// Called first in main, if a source of the binary defines it.
__attribute__((weak)) void PrepareTests(char** argv);

}  // namespace runahead
