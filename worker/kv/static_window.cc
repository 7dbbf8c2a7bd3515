#include "worker/kv/static_window.h"

#include "absl/strings/str_format.h"

namespace runahead {

absl::StatusOr<StaticWindowSize> MakeStaticWindowSize(int64_t context, int64_t reserve) {
  if (context < 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a window for contexts of %d tokens: it takes 2 at least, one of them past", context));
  }
  const int64_t most = 2 * (context - 1);
  if (reserve == 0) return StaticWindowSize{context, most};
  if (reserve < context || reserve > most) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a reserve of %d rows for a window of %d: %d to %d work, or 0 for the most", reserve,
                        context - 1, context, most));
  }
  return StaticWindowSize{context, reserve};
}

int64_t StaticWindowBytes(const StaticWindowSize& size, int64_t layers, int64_t kv_heads, int64_t head_dim, int bits) {
  constexpr int64_t kKeysAndValues = 2;
  return kKeysAndValues * layers * kv_heads * size.reserve * head_dim * bits / 8;
}

StaticWindow::Appended StaticWindow::Append() {
  Appended appended;
  if (first_row_ + size_.past() == size_.reserve) {  // the buffer is full: the window goes back to its beginning
    const int64_t rows = size_.past() - padding();
    appended.move = {first_row_ + padding(), padding(), rows};
    first_row_ = 0;
  }
  appended.row = first_row_ + size_.past();
  ++first_row_;
  ++length_;
  return appended;
}

}  // namespace runahead
