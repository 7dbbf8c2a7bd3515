// Work on rows that do not depend on each other, spread over a pool.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/thread_pool.h"

namespace runahead {

// body(row) for all rows; several rows a task when they are short, inline when all of it is short. Blocks until done.
template <typename Body>
void ForRows(ThreadPool& pool, int64_t rows, int64_t elements_per_row, const Body& body) {
  // Elements that one task handles at least: some ten microseconds of work, against one to hand it over.
  constexpr int64_t kTaskElements = 16 << 10;
  const int64_t step = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, elements_per_row));
  pool.ParallelFor((rows + step - 1) / step, [&](int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * step);
    for (int64_t row = task * step; row < end; ++row) body(row);
  });
}

}  // namespace runahead
