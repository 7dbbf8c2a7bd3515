// The static window of KV (docs/static-window.md): the newest rows of a sequence in a buffer of a fixed size, in which
// a new row is written in place and the window's beginning moves instead of its rows. Knows no device: says which rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"

namespace runahead {

// What a window's buffer is like; MakeStaticWindowSize makes those that can be.
struct StaticWindowSize {
  int64_t context = 0;  // S: a step attends over S - 1 positions of the past and the new one
  int64_t reserve = 0;  // rows of the buffer, S to 2(S - 1)

  int64_t past() const { return context - 1; }
  // How many positions are appended between two copies of the window.
  int64_t appends_per_copy() const { return reserve - past(); }
};

// `reserve` 0 is 2(S - 1), with which a copy of S - 1 rows comes once in S - 1 tokens; less of it copies more often, as
// many rows. INVALID_ARGUMENT where S is below 2, or the reserve not one of S to 2(S - 1).
absl::StatusOr<StaticWindowSize> MakeStaticWindowSize(int64_t context, int64_t reserve = 0);

// Bytes of one sequence's buffers, of K and V in all layers, with elements of `bits` bits (8, 16 or 32).
int64_t StaticWindowBytes(const StaticWindowSize& size, int64_t layers, int64_t kv_heads, int64_t head_dim, int bits);

// One sequence's window: S - 1 rows from first_row() on, the newest position in the last of them. Where the sequence
// has fewer positions the first rows are padding, which nobody reads. The same in all layers. Not thread-safe; copies
// are cheap.
class StaticWindow {
 public:
  // Of a sequence that has `length` positions: whoever makes it fills the rows of [first_position(), length).
  StaticWindow(const StaticWindowSize& size, int64_t length) : size_(size), length_(length) {}

  // `rows` rows from `from` on are to be copied to `to`, which is below it. The two ranges may overlap: a copy in
  // pieces of from - to rows each, in rising order, has none that does.
  struct Move {
    int64_t from = 0, to = 0, rows = 0;  // no rows: nothing is copied
  };
  struct Appended {
    Move move;        // comes first
    int64_t row = 0;  // where the new position goes
  };
  // One position more. What it returns is to be done before the next call.
  Appended Append();

  int64_t length() const { return length_; }  // positions, those that have left the window included
  int64_t first_row() const { return first_row_; }
  int64_t padding() const { return std::max<int64_t>(0, size_.past() - length_); }
  int64_t first_position() const { return std::max<int64_t>(0, length_ - size_.past()); }
  // The first position that the newest one attends to, behind whose S - 1 predecessors it stands: once something was
  // appended its row is there, whether in the window or right before it.
  int64_t first_attended() const { return std::max<int64_t>(0, length_ - size_.context); }
  // The row of a position in [first_attended(), length()).
  int64_t RowOf(int64_t position) const { return first_row_ + size_.past() - (length_ - position); }

 private:
  StaticWindowSize size_;
  int64_t length_;
  int64_t first_row_ = 0;
};

}  // namespace runahead
