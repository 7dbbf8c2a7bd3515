// RUNAHEAD_RETURN_IF_ERROR and RUNAHEAD_ASSIGN_OR_RETURN in coroutines.
#pragma once

#include <utility>

#include "kernels/base/status_macros.h"

// `expr` may await. It does so in a statement of its own: g++ 12 makes wrong code of conditions that await.
#define RUNAHEAD_CO_RETURN_IF_ERROR(expr)                   \
  do {                                                      \
    absl::Status runahead_status_ = (expr);                 \
    if (!runahead_status_.ok()) co_return runahead_status_; \
  } while (false)

#define RUNAHEAD_CO_ASSIGN_OR_RETURN(lhs, expr) \
  RUNAHEAD_CO_ASSIGN_OR_RETURN_INNER(RUNAHEAD_CONCAT(runahead_statusor_, __LINE__), lhs, expr)
#define RUNAHEAD_CO_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                       \
  if (!tmp.ok()) co_return std::move(tmp).status();        \
  lhs = *std::move(tmp)
