#!/usr/bin/env python3
"""Owns: the rules of count.py on made-up counts: what is a difference, what is not compared, how a dump is read."""
import contextlib
import copy
import io
import json
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import count  # noqa: E402

MEASURED = {"build": {"compiler": "GNU 1", "architecture": "x86_64", "flags": "Release -O3"},
            "pieces": {"cache.hit": {"operation": "hit", "instructions": 50.0, "allocations": 0.0, "with_libc": 51.0},
                       "cache.miss": {"operation": "miss", "instructions": 100.0, "allocations": 2.0, "with_libc": 300.0}}}


def run(measured, baseline, *arguments):
    """count.py's main() on these counts: exit code, what it printed, and the baseline afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "baseline.json")
        if baseline is not None:
            with open(path, "w") as f:
                json.dump(baseline, f)
        out = io.StringIO()
        with mock.patch.object(count, "measure", return_value=measured), contextlib.redirect_stdout(out), \
                mock.patch.object(count.shutil, "which", return_value="valgrind"), \
                mock.patch.object(sys, "argv", ["count.py", "micro_count", "--baseline", path, *arguments]):
            try:
                rc = count.main()
            except SystemExit as e:
                rc = e.code
        after = None
        if os.path.exists(path):
            with open(path) as f:
                after = json.load(f)
        return rc, out.getvalue(), after


class Rules(unittest.TestCase):
    def setUp(self):
        self.baseline = count.baseline_of(MEASURED)
        self.measured = copy.deepcopy(MEASURED)

    def test_the_same_passes(self):
        rc, said, _ = run(self.measured, self.baseline)
        self.assertEqual(rc, 0)
        self.assertIn("as the baseline", said)

    def test_ratios_are_to_the_reference(self):
        self.assertEqual(self.baseline["pieces"]["cache.miss"]["ratio"], 2.0)

    def test_a_change_within_the_tolerance_passes(self):
        self.measured["pieces"]["cache.miss"]["instructions"] = 101.9
        self.assertEqual(run(self.measured, self.baseline)[0], 0)

    def test_more_fails_and_names_piece_old_new_and_percent(self):
        self.measured["pieces"]["cache.miss"]["instructions"] = 110.5
        rc, said, _ = run(self.measured, self.baseline)
        self.assertEqual(rc, 1)
        self.assertIn("cache.miss: 100 -> 110.5 instructions for one miss: more (+10.5%)", said)
        self.assertNotIn("cache.hit:", said)

    def test_fewer_asks_for_a_new_baseline(self):
        self.measured["pieces"]["cache.miss"]["instructions"] = 80.0
        rc, said, _ = run(self.measured, self.baseline)
        self.assertEqual(rc, 1)
        self.assertIn("cache.miss: 100 -> 80 instructions for one miss: fewer (-20.0%)", said)
        self.assertIn("make bench-count-update", said)

    def test_the_first_allocation_is_more_whatever_the_tolerance(self):
        self.measured["pieces"]["cache.hit"]["allocations"] = 0.001
        rc, said, _ = run(self.measured, self.baseline)
        self.assertEqual(rc, 1)
        self.assertIn("cache.hit: 0 -> 0.001 allocations for one hit: more (there were none)", said)

    def test_a_piece_on_one_side_only_fails(self):
        more = copy.deepcopy(self.measured)
        more["pieces"]["new.piece"] = more["pieces"]["cache.miss"]
        rc, said, _ = run(more, self.baseline)
        self.assertEqual(rc, 1)
        self.assertIn("new.piece: not in the baseline", said)
        rc, said, _ = run(self.measured, count.baseline_of(more))
        self.assertEqual(rc, 1)
        self.assertIn("new.piece: in the baseline, but no longer measured", said)

    def test_another_build_is_not_compared_and_claims_nothing(self):
        for key in ("compiler", "architecture", "flags"):
            other = copy.deepcopy(self.measured)
            other["build"][key] = "other"
            other["pieces"]["cache.miss"]["instructions"] = 200.0
            rc, said, _ = run(other, self.baseline)
            self.assertEqual(rc, 0)
            self.assertIn("not compared: the baseline is for compiler GNU 1, architecture x86_64, flags Release -O3", said)
            self.assertIn(f"{key} other", said)
            self.assertIn("+100.0%", said)
            self.assertNotIn("as the baseline", said)

    def test_update_writes_what_was_measured(self):
        self.measured["pieces"]["cache.miss"]["instructions"] = 80.0
        rc, _, after = run(self.measured, self.baseline, "--update")
        self.assertEqual(rc, 0)
        self.assertEqual(after, count.baseline_of(self.measured))
        self.assertEqual(run(self.measured, after)[0], 0)

    def test_no_baseline_fails(self):
        rc, _, _ = run(self.measured, None)
        self.assertIn("there is no", rc)

    def test_no_valgrind_fails(self):
        with mock.patch.object(count.shutil, "which", return_value=None), \
                mock.patch.object(sys, "argv", ["count.py", "micro_count"]), \
                self.assertRaisesRegex(SystemExit, "setup.sh --test-packages"):
            count.main()


DUMP = """\
summary: 1112

ob=(3) /lib/libc.so.6
fn=(1) main
cob=(9) /build/micro_count
cfn=(2) piece
calls=1 0
58 1107
+1 5

ob=(9)
fn=(2)
0 100
* 2
cob=(3)
cfn=(4) memcpy
calls=7 0
0 1000
0 5

ob=(3)
fn=(4)
0 1000
"""


class Dump(unittest.TestCase):
    def test_only_what_lies_in_the_program_is_its_own(self):
        self.assertEqual(count.read_dump(DUMP, "/build/micro_count"), (107, 1112))

    def test_a_sum_that_is_not_callgrinds_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "not understood"):
            count.read_dump(DUMP.replace("* 2\n", "* 3\n"), "/build/micro_count")


if __name__ == "__main__":
    unittest.main()
