// Early return for absl::Status and absl::StatusOr, and the check for our own bugs.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RUNAHEAD_CONCAT_INNER(a, b) a##b
#define RUNAHEAD_CONCAT(a, b) RUNAHEAD_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expr` (an absl::Status) is not OK.
#define RUNAHEAD_RETURN_IF_ERROR(expr)                                                           \
  do {                                                                                           \
    if (absl::Status runahead_status_ = (expr); !runahead_status_.ok()) return runahead_status_; \
  } while (false)

// Assigns the value of `expr` (an absl::StatusOr) to `lhs`, which may declare a variable, or returns its status.
#define RUNAHEAD_ASSIGN_OR_RETURN(lhs, expr) \
  RUNAHEAD_ASSIGN_OR_RETURN_INNER(RUNAHEAD_CONCAT(runahead_statusor_, __LINE__), lhs, expr)
#define RUNAHEAD_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                    \
  if (!tmp.ok()) return std::move(tmp).status();        \
  lhs = *std::move(tmp)

// For our own bugs only, never for input: prints the condition and aborts.
#define RUNAHEAD_CHECK(condition)                                                        \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
