#!/usr/bin/env python3
"""Schedules of open arrivals, and what tests/bench/open_load.py makes of figures: no service is started."""
import math
import statistics
import unittest

from open_load import Lengths, Objectives, capacity, figures, quantile, schedule

PROMPTS = Lengths(200, 0.8, 8, 2000)
ANSWERS = Lengths(40, 0.5, 2, 200)


def one(ttft, gaps, code="OK"):
    return {"code": code, "late_s": 0, "ttft_s": ttft, "gaps_s": gaps}


class ScheduleTest(unittest.TestCase):
    def test_a_seed_gives_one_schedule(self):
        first, second = (schedule(7, 2, 50, PROMPTS, ANSWERS) for _ in range(2))
        self.assertEqual(first, second)
        self.assertNotEqual(first, schedule(8, 2, 50, PROMPTS, ANSWERS))

    def test_rates_share_lengths_and_order_of_arrivals_but_no_prompt(self):
        slow, fast = schedule(7, 1, 50, PROMPTS, ANSWERS), schedule(7, 4, 50, PROMPTS, ANSWERS)
        self.assertEqual([len(a.ids) for a in slow], [len(a.ids) for a in fast])
        self.assertEqual([a.new_tokens for a in slow], [a.new_tokens for a in fast])
        for a, b in zip(slow, fast):
            self.assertAlmostEqual(a.at_s, 4 * b.at_s)
        self.assertNotEqual(slow[0].ids, fast[0].ids)

    def test_arrivals_are_poisson_and_lengths_log_normal(self):
        arrivals = schedule(1, 5, 4000, PROMPTS, ANSWERS)
        between = [b.at_s - a.at_s for a, b in zip(arrivals, arrivals[1:])]
        self.assertAlmostEqual(statistics.mean(between), 0.2, delta=0.02)
        self.assertAlmostEqual(statistics.pstdev(between), 0.2, delta=0.02)  # of an exponential one it is the mean
        lengths = [len(a.ids) for a in arrivals]
        self.assertAlmostEqual(statistics.median(lengths), 200, delta=15)
        self.assertEqual((min(lengths) >= 8, max(lengths)), (True, 2000))


class FiguresTest(unittest.TestCase):
    arrivals = schedule(1, 1, 4, PROMPTS, ANSWERS)

    def test_of_each_request_and_of_all_gaps(self):
        seen = [one(0.1, [0.01] * 9), one(0.3, [0.02]), one(3, [0.01]), one(None, [], "RESOURCE_EXHAUSTED")]
        got = figures(self.arrivals, seen, Objectives(1, 0.015))
        self.assertEqual((got.requests, got.refused, got.good, got.tokens), (4, 1, 1, 14))
        self.assertEqual((got.ttft_p50_s, got.ttft_p99_s, got.gap_p50_s, got.gap_p99_s), (0.3, 3, 0.01, 0.02))
        self.assertEqual(got.good_share, 0.25)
        self.assertAlmostEqual(got.seconds, max(self.arrivals[2].at_s + 3.01, self.arrivals[3].at_s))

    def test_one_gap_of_a_hundred_may_be_long(self):
        for gaps, good in ((99, 1), (98, 0)):
            got = figures(self.arrivals[:1], [one(0.1, [0.01] * gaps + [5.0])], Objectives(1, 0.1))
            self.assertEqual((got.good, got.gap_max_s), (good, 5.0))

    def test_one_token_has_no_gaps(self):
        got = figures(self.arrivals[:1], [one(0.1, [])], Objectives(1, 0.1))
        self.assertEqual((got.good, got.tokens), (1, 1))
        self.assertTrue(math.isnan(got.gap_p99_s))

    def test_quantiles_are_of_what_was_seen(self):
        self.assertEqual([quantile(range(1, 101), share) for share in (0.5, 0.99, 1)], [50, 99, 100])

    def test_capacity_ends_at_the_first_rate_that_fails(self):
        rate = lambda good: figures(self.arrivals, [one(0.1 if i < good else 9, []) for i in range(4)], Objectives(1, 1))
        self.assertEqual(capacity([(1, rate(4)), (3, rate(4)), (2, rate(2))]), 1)
        self.assertEqual(capacity([(1, rate(3))], share=0.75), 1)
        self.assertEqual(capacity([(1, rate(3))]), 0)


if __name__ == "__main__":
    unittest.main()
