#!/usr/bin/env python3
"""What tests/bench/crossing.py makes of figures: no service is started."""
import contextlib
import io
import types
import unittest

from crossing import Pair, conclude, standard_error


class CrossingTest(unittest.TestCase):
    def test_error_of_a_median_is_not_moved_by_an_outlier(self):
        quiet = [1.0, 1.02, 0.98, 1.01, 0.99]
        self.assertLess(standard_error([*quiet[:4], 9.0]), 0.05)
        self.assertGreater(standard_error(quiet), 0)

    def test_the_width_taken_is_compared_with_the_best_of_the_others_turn_by_turn(self):
        # The machine gets slower: widths are compared within a turn.
        pair = Pair(2, [[30, 60, 90], [10, 20, 30], [15, 30, 45]])
        self.assertEqual((pair.rival, pair.to_rival, pair.verdict()), (3, 1.5, "fastest"))
        self.assertEqual(pair.fastest(), (2, True))

    def test_a_choice_is_slower_only_by_more_than_twice_the_error(self):
        slower = Pair(1, [[20.0, 20.2, 19.8], [10, 10, 10]])
        self.assertEqual((slower.verdict(), slower.fastest()), ("slower", (2, True)))
        noisy = Pair(1, [[10.2, 14.0, 8.0], [10, 10, 10]])
        self.assertEqual((noisy.verdict(), noisy.fastest()), ("within noise", (2, False)))

    def test_conclusion_counts_and_shows_which_width_was_fastest_where(self):
        pairs = {("0.1", 128): Pair(1, [[10, 10, 10], [20, 20, 20]]), ("0.2", 128): Pair(1, [[20, 20, 20], [10, 10, 10]])}
        with contextlib.redirect_stdout(io.StringIO()) as out:
            conclude(pairs, ["0.1", "0.2"], types.SimpleNamespace(tokens=[128]))
        self.assertIn("of 2 pairs: 1 fastest, 0 within noise, 1 slower", out.getvalue())
        self.assertEqual(out.getvalue().splitlines()[-1].split(), ["128", "1", "2"])


if __name__ == "__main__":
    unittest.main()
