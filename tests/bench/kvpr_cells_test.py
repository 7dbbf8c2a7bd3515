"""Readings of metrics as a decode worker gives them, made up."""

import unittest

from kvpr_cells import layer_seconds, predicted, values, whole_batch

TEXT = """# HELP runahead_decode_step_seconds Steps
runahead_decode_step_seconds_sum{device="cpu"} 1.5
runahead_decode_step_seconds_count{device="cpu"} 10
runahead_decode_batch_size_sum{device="cpu"} 30
runahead_kvpr_position_seconds{device="cpu",work="recompute"} 2e-06
"""


class KvprCells(unittest.TestCase):
    def test_series_are_read_without_the_device(self):
        read = values(TEXT)
        self.assertEqual(read["runahead_decode_step_seconds_sum"], 1.5)
        self.assertEqual(read['runahead_kvpr_position_seconds{work="recompute"}'], 2e-6)

    def test_steps_count_only_where_all_sequences_are_in_them(self):
        before = values(TEXT)
        after = dict(before, runahead_decode_step_seconds_sum=2.5, runahead_decode_step_seconds_count=14,
                     runahead_decode_batch_size_sum=62)
        self.assertEqual(whole_batch(before, after, 8), (4, 1.0))
        self.assertEqual(whole_batch(before, after, 4), (0, 0.0))
        self.assertEqual(whole_batch(before, before, 8), (0, 0.0))

    def test_the_best_l_is_where_link_and_device_meet(self):
        rates = {"link": 1e9, "kv_bytes": 4000, "x_bytes": 2000, "recompute": 2e-6, "project": 0, "attend": 0}
        # 4 (n - l) + 2 l = 2 l microseconds: l = n.
        self.assertEqual(predicted(rates, 1, 1024), (1024, 2))
        rates["recompute"] = 6e-6  # 4 n - 2 l = 6 l: l = n / 2
        l, gain = predicted(rates, 1, 1024)
        self.assertEqual(l, 512)
        self.assertAlmostEqual(gain, 4 / 3)
        self.assertAlmostEqual(layer_seconds(rates, 8, 1024, 512), 8 * 3072e-6)


if __name__ == "__main__":
    unittest.main()
