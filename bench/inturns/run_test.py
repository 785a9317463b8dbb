#!/usr/bin/env python3
"""Owns: the rules of run.py on made-up blocks, and one small cell of a real model: run_test.py INTURNS SLUICE MODEL."""
import contextlib
import io
import os
import subprocess
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import run  # noqa: E402

INTURNS, SLUICE, MODEL = (sys.argv[1:4] + [None] * 3)[:3]


def blocks(arm, walls, hits=3):
    return [{"round": 0, "block": i, "arm": arm, "wall_ns": wall, "tokens": 2, "cpu_ns": 0, "wait_ns": 0, "lookups": 4, "hits": hits,
             "bytes": 10, "physical_bytes": 10, "early_bytes": 0, "used_bytes": 0, "guess_on": 0} for i, wall in enumerate(walls)]


class Rules(unittest.TestCase):
    def test_the_interval_is_that_of_the_sign_test(self):
        low, high, chance = run.interval([5, 1, 4, 2, 6, 3])
        self.assertEqual((low, high), (1, 6))
        self.assertAlmostEqual(chance, 1 - 2 / 64)
        # Of sixteen the fourth and the thirteenth: 1 - 2 * (1 + 16 + 120 + 560) / 2^16.
        low, high, chance = run.interval(range(1, 17))
        self.assertEqual((low, high), (4, 13))
        self.assertAlmostEqual(chance, 1 - 2 * 697 / 65536)
        # Three values are too few for 95 %, and it is said with which chance they hold the median.
        self.assertEqual(run.interval([3, 1, 2]), (1, 3, 0.75))
        self.assertEqual(run.interval([7])[:2], (7, 7))

    def test_drift_within_a_pair_of_blocks_is_in_both_arms(self):
        # The machine gets slower by 10 with each block, and all arms are equally fast: off, on | on, off.
        rows = blocks("off", [100, 130]) + blocks("on", [110, 120])
        self.assertEqual(run.compared(rows, "on")[0], 1)
        self.assertEqual(run.compared(rows, "on")[4], 1)

    def test_a_ratio_is_of_speeds_and_half_a_pair_does_not_count(self):
        rows = blocks("off", [100, 100, 300]) + blocks("on", [50, 50, 1])
        middle, low, high, _, total = run.compared(rows, "on")
        self.assertEqual((middle, low, high, total), (2, 2, 2, 2))

    def test_again_with_other_counts_is_told(self):
        same = run.table_rows(blocks("off", [1, 1]) + blocks("again", [1, 1]), "free", 50, ["again"])
        self.assertEqual(len(same), 2)
        other = run.table_rows(blocks("off", [1, 1]) + blocks("again", [1, 1], hits=2), "free", 50, ["again"])
        self.assertIn("other counts", other[-1])

    def test_blocks_of_a_throttled_drive_are_as_long_whatever_is_cached(self):
        args = mock.Mock(block=4)
        self.assertEqual([run.block_tokens(args, True, share) for share in (10, 25, 50, 75)], [4, 4, 8, 12])
        self.assertEqual(run.block_tokens(args, False, 75), 4)

    def test_only_the_trained_arm_needs_to_be_filled_in(self):
        self.assertEqual([arm for arm, options in run.ARMS.items() if options is None], ["predict-prefetch, trained"])
        self.assertLessEqual({arm for group in run.GROUPS.values() for arm in group}, set(run.ARMS))


@unittest.skipUnless(MODEL, "needs the programs and a model")
class Cell(unittest.TestCase):
    def run_cell(self, *options):
        command = ["run.py", "--inturns", INTURNS, "--sluice", SLUICE, "--model", MODEL, "--text", "", "--shares", "50", "--threads", "1",
                   "--units", "6", "--auto", "4", "--warm", "4", "--block", "2", *options]
        out = io.StringIO()
        with mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(out):
            run.main()
        return [line.split(" | ") for line in out.getvalue().splitlines()[2:]]

    def test_every_arm_has_a_row_and_again_reads_what_off_reads(self):
        rows = {(i, cells[2]): cells for i, cells in enumerate(self.run_cell())}
        arms = [arm for _, arm in rows]
        self.assertEqual(arms, [a for group in run.GROUPS.values() for a in ["off", *group] if run.ARMS[a if a != "off" else "again"] is not None])
        for i, arm in rows:
            if arm == "again":
                self.assertEqual(rows[i, "again"][9:11], rows[i - 1, "off"][9:11])
            if arm == "route-ahead 1":
                self.assertNotEqual(rows[i, arm][11], "")  # it reads early

    def test_auto_begins_its_trial_in_its_own_time(self):
        rows = self.run_cell("--groups", "auto")
        self.assertRegex([r for r in rows if r[2] == "prefetch auto"][0][-1], r"^[1-9][0-9]?% \|$")

    def inturns(self, *options):
        return subprocess.run([INTURNS, MODEL, "--cache-mb", "0.3", "--threads", "1", "--warm", "2", "--tokens", "4", "--block", "2",
                               "--rounds", "1", "--arm", "off=", *options], capture_output=True, text=True, check=False)

    def test_arms_that_may_not_differ_are_compared(self):
        self.assertEqual(self.inturns("--arm", "ahead=--route-ahead 1").returncode, 0)
        done = self.inturns("--arm", "ahead=--route-ahead 1", "--same")
        self.assertEqual(done.returncode, 1)
        self.assertIn("off and ahead have other logits", done.stderr)

    def test_what_is_no_arm_is_refused(self):
        for arm, why in (("x=--nonsense", "is no option"), ("x=--cache-mb 3", "no arm's"), ("=", "NAME=OPTIONS"),
                         ("x=--prefetch 1 --predict-prefetch", "x:")):
            done = self.inturns("--arm", arm)
            self.assertEqual(done.returncode, 1, arm)
            self.assertIn(why, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
