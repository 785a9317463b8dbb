#!/usr/bin/env python3
"""Owns: the tests of bench/race/race.py, with arms that are one line of shell. Needs no root, no model and no Sluice.

Where memory cgroups can be made (as root), a real cell is tested too; elsewhere that test says it was skipped.
"""
import contextlib
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "bench/race"))
import race  # noqa: E402

SPEED = "decode 5.0 tok/s"
DECODE = "[decode]\nregex = 'decode (?P<number>[0-9.]+) tok/s'\n"


def can_make_cells():
    try:
        with race.Cgroup(64 * race.MIB):
            return True
    except OSError:
        return False


def running():
    """The command lines of all processes."""
    return [race.read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
            for pid in os.listdir("/proc") if pid.isdigit()]


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="race-test-")
        self.addCleanup(lambda: subprocess.run(["rm", "-rf", self.dir], check=True))
        self.model = self.path("model.gguf")
        with open(self.model, "wb") as f:
            f.write(os.urandom(3 * race.MIB + 17))
        self.out = self.path("race.jsonl")
        patch = mock.patch.object(race, "GRACE_S", 0.3)
        patch.start()
        self.addCleanup(patch.stop)

    def path(self, name):
        return os.path.join(self.dir, name)

    def arm(self, name, shell=f"echo some text; echo {SPEED!r} >&2", more="", rules=DECODE):
        with open(self.path(name + ".toml"), "w") as f:
            f.write(f'name = "{name}"\ncommand = ["sh", "-c", {json.dumps(shell)}]\n{more}\n{rules}')
        return self.path(name + ".toml")

    def arguments(self, arms, *more, rounds=2, to="--out"):
        arguments = ["--model", self.model, "--rounds", str(rounds), "--wait", "0", *more, to, self.out]
        for a in arms:
            arguments += ["--arm", a]
        return arguments

    def race(self, arms, *more, code=0, **how):
        """Runs in this process; what it says on standard error, which is nothing unless it fails."""
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            self.assertEqual(race.main(self.arguments(arms, *more, **how)), code, err.getvalue())
        if code == 0:
            self.assertEqual(err.getvalue(), "")
        return err.getvalue()

    def lines(self):
        with open(self.out) as f:
            return [json.loads(line) for line in f]

    def samples(self):
        return [o for o in self.lines() if o["kind"] == "sample"]


class Running(Case):
    def test_forward_then_backward(self):
        arms = [self.arm(n) for n in "abc"]
        self.race(arms, "--ram", "none", rounds=4)
        self.assertEqual("".join(s["arm"] for s in self.samples()), "abccbaabccba")
        self.assertEqual([s["position"] for s in self.samples()], list(range(12)))
        self.assertEqual([s["round"] for s in self.samples()], [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3)
        self.assertEqual(self.lines()[-1], {"kind": "end"})

    def test_header_says_what_raced_on_what(self):
        self.race([self.arm("a", more='env = { X = "{n_predict}" }\nversion = [["echo", "v7"]]'), self.arm("b")],
                  "--baseline", "b", "-n", "9", "--prompt", "hello", "--ram", "none")
        h = self.lines()[0]
        self.assertEqual((h["sluice_record"], h["kind"], h["n_predict"]), (1, "race", 9))
        self.assertEqual(h["prompt_sha256"], hashlib.sha256(b"hello").hexdigest())
        self.assertEqual(h["model"]["bytes"], 3 * race.MIB + 17)
        self.assertEqual([a["baseline"] for a in h["arms"]], [False, True])
        self.assertEqual(h["arms"][0]["env"], {"X": "9"})
        self.assertEqual(h["arms"][0]["version"], "v7")
        self.assertEqual(h["cells"], [{"name": "none", "ram_bytes": None}])
        for key in ("cpu", "cores", "ram_bytes", "kernel", "drive", "file_system", "cgroup"):
            self.assertIn(key, h["machine"])

    def test_output_digest_without_white_space_at_the_end(self):
        plain = self.arm("plain", more='[output]\nfrom = "stdout"')
        marked = self.arm("marked", f"echo noise; echo '== text'; printf 'some text\\n\\n\\n== end'; echo {SPEED!r} >&2",
                          more="[output]\nafter = '^== text\\n'\nbefore = '^== end'")
        none = self.arm("none")
        self.race([plain, marked, none], rounds=1)
        wanted = hashlib.sha256(b"some text").hexdigest()
        self.assertEqual([s["output_digest"] for s in self.samples()], [wanted, wanted, None])

    def test_failing_and_hanging_arms_are_recorded_and_the_race_goes_on(self):
        arms = [self.arm("fails", "echo why >&2; exit 3"), self.arm("hangs", "trap '' INT; sleep 60"),
                self.arm("gone"), self.arm("well")]
        with open(arms[2], "w") as f:
            f.write('name = "gone"\ncommand = ["/nowhere/program"]\n' + DECODE)
        begin = time.monotonic()
        self.race(arms, "--time-limit", "0.5", rounds=1)
        self.assertLess(time.monotonic() - begin, 20)
        fails, hangs, gone, well = self.samples()
        self.assertEqual(fails["exit"], 3)
        self.assertIn("ended with code 3: why", fails["error"])
        self.assertEqual(hangs["exit"], -signal.SIGKILL)
        self.assertEqual(hangs["error"], "time limit of 0.5 s")
        self.assertIn("cannot start /nowhere/program", gone["error"])
        self.assertEqual((well["error"], well["exit"], well["decode_tokens_per_second"]), (None, 0, 5.0))

    def test_at_the_time_limit_an_arm_may_say_how_far_it_came(self):
        self.race([self.arm("slow", f"trap 'echo {SPEED} >&2; exit 130' INT; while :; do sleep 0.05; done")],
                  "--time-limit", "0.4", rounds=1)
        s = self.samples()[0]
        self.assertEqual(s["decode_tokens_per_second"], 5.0)
        self.assertEqual(s["error"], "time limit of 0.4 s; until then 5 tok/s in decode")

    def test_what_an_arm_leaves_behind_is_ended(self):
        self.race([self.arm("forks", f"sleep 77.125 & echo {SPEED} >&2")], rounds=1)
        self.assertIsNone(self.samples()[0]["error"])
        self.assertNotIn("sleep 77.125", running())

    def test_an_arm_that_floods_its_output_is_ended(self):
        with mock.patch.object(race, "OUTPUT_LIMIT", race.MIB):
            self.race([self.arm("floods", f"echo {SPEED} >&2; while :; do head -c 100000 /dev/zero; done")], rounds=1)
        s = self.samples()[0]
        self.assertEqual(s["error"], "more than 1 MiB of output; until then 5 tok/s in decode")
        self.assertIsNone(s["output_digest"])

    def test_every_run_begins_without_the_model_in_memory(self):
        with open(self.model, "rb") as f:
            f.read()
        if race.resident_bytes(self.model) in (0, None):
            self.skipTest("this file system keeps no page cache, or the kernel does not say")
        self.race([self.arm("reads", f"cat {self.model} >/dev/null; echo {SPEED} >&2")], rounds=2)
        self.assertEqual([s["page_cache_left_bytes"] for s in self.samples()], [0, 0])

    def test_the_callers_variables_do_not_reach_the_arms(self):
        with mock.patch.dict(os.environ, {"SLUICE_CACHE_MB": "1", "LD_PRELOAD": "", "GGML_X": "1", "KEPT": "1"}):
            self.race([self.arm("a", f"echo $SLUICE_CACHE_MB$GGML_X$KEPT$MINE; echo {SPEED} >&2",
                                more='env = { MINE = "2" }\n[output]\nfrom = "stdout"')], rounds=1)
        self.assertEqual(self.samples()[0]["output_digest"], hashlib.sha256(b"12").hexdigest())

    def test_a_forced_arm_gets_the_text_it_has_to_write(self):
        with open(self.path("text"), "w") as f:
            f.write("and so on")
        self.race([self.arm("a", f"cat {{continuation_file}}; echo {SPEED} >&2",
                            more='forced = true\n[output]\nfrom = "stdout"')],
                  "--continuation", self.path("text"), rounds=1)
        self.assertEqual(self.samples()[0]["output_digest"], hashlib.sha256(b"and so on").hexdigest())
        self.assertTrue(self.lines()[0]["arms"][0]["forced"])

    def test_an_arm_may_change_its_cache_and_nothing_that_all_share(self):
        a = self.arm("a", f"echo {{cache_mb}}; echo {SPEED} >&2", more='[output]\nfrom = "stdout"')
        self.race([a, a + ":cache_mb=500"], "--cache-mb", "300", rounds=1)
        self.assertEqual([s["arm"] for s in self.samples()], ["a", "a (cache_mb=500)"])
        self.assertEqual([s["output_digest"] for s in self.samples()],
                         [hashlib.sha256(t).hexdigest() for t in (b"300", b"500")])
        os.unlink(self.out)
        self.assertIn("is no change of an arm", self.race([a + ":threads=1"], code=1))


class Numbers(Case):
    def read(self, rules, shell):
        self.race([self.arm("a", shell, rules=rules)], rounds=1)
        return self.samples()[0]

    def test_a_pattern_that_does_not_match_is_named_with_the_end_of_the_output(self):
        s = self.read("[decode]\nregex = 'speed (?P<number>[0-9]+)'\n", "echo the last words >&2")
        self.assertIsNone(s["decode_tokens_per_second"])
        self.assertIn("[decode]", s["error"])
        self.assertIn("speed (?P<number>[0-9]+)", s["error"])
        self.assertIn("the last words", s["error"])

    def test_the_first_token_is_not_counted_twice(self):
        s = self.read("[decode]\nregex = '(?P<count>[0-9]+) tokens at (?P<number>[0-9.]+)'\ncounts_first = true\n",
                      "echo 12 tokens at 6.0 >&2")
        self.assertEqual(s["decode_tokens_per_second"], 5.5)

    def test_a_number_out_of_lines_of_json(self):
        record = {"kind": "summary", "phase": "decode", "totals": {"tokens": 11, "wall_ns": 2_000_000_000}}
        other = {"kind": "summary", "phase": "prefill", "totals": {"tokens": 99, "wall_ns": 1}}
        s = self.read('[decode]\nvalue = "totals.tokens"\nover = "totals.wall_ns"\nscale = 1e9\n'
                      'where = { kind = "summary", phase = "decode" }\n',
                      f"printf '%s\\n%s\\n{{\"cut' '{json.dumps(record)}' '{json.dumps(other)}' >{{record}}")
        self.assertIsNone(s["error"])
        self.assertEqual(s["decode_tokens_per_second"], 5.5)

    def test_a_number_that_is_not_in_the_json_is_named(self):
        s = self.read('[decode]\nvalue = "a.b"\n', "echo '{\"a\": {}}' >{record}")
        self.assertIn("no number a.b", s["error"])

    def test_no_speed_is_no_number(self):
        for text in ("0", "nan", "inf", "-1"):
            s = self.read("[decode]\nregex = 'at (?P<number>\\S+)'\n", f"echo at {text} >&2")
            self.assertIn("no positive number", s["error"])
            os.unlink(self.out)


class Refusals(Case):
    def test_a_placeholder_that_does_not_exist(self):
        said = self.race([self.arm("a", "echo {modle}")], code=1)
        self.assertIn("{modle}", said)
        self.assertIn("{model}", said)
        self.assertFalse(os.path.exists(self.out))

    def test_adapters_with_mistakes(self):
        for text, says in (
                ('command = ["x"]\n', "a table named decode"),
                (DECODE, "a list named command"),
                ('command = ["x"]\ncomand = 1\n' + DECODE, 'no key "comand"'),
                ('command = ["x"]\n[decode]\nregex = "("\n', "does not compile"),
                ('command = ["x"]\n[decode]\nregex = "x"\n', "no group named number"),
                ('command = ["x"]\n[decode]\nregex = "(?P<number>x)"\ncounts_first = true\n', "group named count"),
                ('command = ["x"]\n[decode]\n', "either a regex"),
                ('command = ["x"]\n[decode]\nregex = "(?P<number>x)"\nfrom = "tape"\n', "from is"),
                ('command = ["x"]\nforced = true\n' + DECODE, "--continuation"),
                ("command = [\n", "toml")):
            with open(self.path("bad.toml"), "w") as f:
                f.write(text)
            self.assertIn(says, self.race([self.path("bad.toml")], code=1))
        self.assertIn("no arm nobody", self.race(["nobody"], code=1))

    def test_cells_that_are_none(self):
        a = self.arm("a")
        for ram in ("0%", "half", "-5%", "50%,50%", ""):
            self.assertIn("--ram", self.race([a], "--ram=" + ram, code=1))

    def test_limited_cells_need_cgroups(self):
        with mock.patch.object(race.Cgroup, "__enter__", side_effect=PermissionError(13, "Permission denied")):
            said = self.race([self.arm("a")], "--ram", "50%,none", code=1)
            self.assertIn("no cell of 50%", said)
            self.assertIn("run as root", said)

    def test_without_cgroups_an_unlimited_cell_runs_and_knows_no_peak(self):
        with mock.patch.object(race, "check_cgroups", return_value=False):
            self.race([self.arm("a")], rounds=1)
        self.assertEqual((self.samples()[0]["error"], self.samples()[0]["peak_bytes"]), (None, None))

    def test_a_finished_file_is_not_overwritten(self):
        a = self.arm("a")
        self.race([a])
        self.assertIn("exists", self.race([a], code=1))

    def test_a_missing_model(self):
        self.model = "/nowhere/m.gguf"
        self.assertIn("/nowhere/m.gguf", self.race([self.arm("a")], code=1))


class Interrupted(Case):
    def start(self, arms, lines=3, **how):
        process = subprocess.Popen([sys.executable, os.path.join(ROOT, "bench/race/race.py"),
                                    *self.arguments(arms, **how)], stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), open(self.out) as f:
                if len(f.readlines()) >= lines:
                    break
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        return process

    def test_killed_leaves_whole_lines_and_is_resumed(self):
        arms = [self.arm("a"), self.arm("b", f"sleep 0.1; echo {SPEED} >&2")]
        process = self.start(arms, rounds=50)
        process.kill()
        process.wait()
        lines = self.lines()
        self.assertEqual(lines[0]["kind"], "race")
        self.assertNotEqual(lines[-1]["kind"], "end")
        with open(self.out, "a") as f:
            f.write('{"kind": "sample", "cell": "no')  # as if the kill had come in the middle of a line
        before = len(self.samples_of(lines))
        # The same race, but for its length, is another one.
        self.assertIn("another rounds", self.race(arms, rounds=2, to="--resume", code=1))
        with mock.patch.object(race, "run_once", side_effect=lambda *_: {"error": None, "again": True}):
            self.race(arms, rounds=50, to="--resume")
        samples = self.samples()
        self.assertEqual(len(samples), 100)
        self.assertEqual(sum("again" in s for s in samples), 100 - before)
        self.assertEqual([s["position"] for s in samples], list(range(100)))
        self.assertEqual(sum(o["kind"] == "resume" for o in self.lines()), 1)
        self.assertEqual(self.lines()[-1], {"kind": "end"})
        self.assertIn("is complete", self.race(arms, rounds=50, to="--resume", code=1))

    @staticmethod
    def samples_of(lines):
        return [o for o in lines if o["kind"] == "sample"]

    def test_a_killed_race_leaves_nothing_that_an_arm_started(self):
        process = self.start([self.arm("a"), self.arm("b", f"(sleep 77.25; true) & (sleep 77.25; true) & echo {SPEED} >&2; wait")],
                             rounds=50, lines=2)
        self.assertTrue(self.within(30, lambda: running().count("sleep 77.25") == 2), "the arm did not start")
        process.kill()
        process.wait()
        self.assertTrue(self.within(30, lambda: "sleep 77.25" not in running()), "its grandchildren go on")

    @staticmethod
    def within(seconds, holds):
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def test_ctrl_c_leaves_a_file_to_resume_and_no_arm_running(self):
        process = self.start([self.arm("a"), self.arm("b", f"sleep 0.215625; echo {SPEED} >&2")], rounds=50)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        self.assertIn("--resume", said)
        self.assertNotIn("Traceback", said)
        self.assertNotEqual(self.lines()[-1]["kind"], "end")
        self.assertNotIn("sleep 0.215625", running())


class Cells(Case):
    @unittest.skipUnless(can_make_cells(), "nobody may make a memory cgroup here")
    def test_a_real_cell_limits_and_reports_memory(self):
        hog = f"{sys.executable} -c 'print(len(bytes([1]) * (200 << 20)))' && echo {SPEED} >&2"
        with open(self.model, "wb") as f:
            f.truncate(64 * race.MIB)
        self.race([self.arm("small"), self.arm("large", hog)],
                  "--ram", "100%,none", rounds=1)
        by = {(s["cell"], s["arm"]): s for s in self.samples()}
        self.assertIsNone(by["100%", "small"]["error"])
        self.assertLessEqual(by["100%", "small"]["peak_bytes"], 64 * race.MIB)
        self.assertGreater(by["100%", "small"]["peak_bytes"], 0)
        self.assertEqual(by["100%", "large"]["error"], "out of memory in its cell")
        self.assertGreater(by["none", "large"]["peak_bytes"], 200 * race.MIB)

    @unittest.skipUnless(can_make_cells(), "nobody may make a memory cgroup here")
    def test_what_a_killed_race_left_is_cleaned_up(self):
        base = race.Cgroup.ROOT + ("/memory" if race.Cgroup.version() == 1 else "")
        gone = subprocess.Popen(["true"])
        gone.wait()
        left = f"{base}/sluice-bench-{gone.pid}"
        os.mkdir(left)
        with race.Cgroup(64 * race.MIB) as group:
            self.assertFalse(os.path.exists(left))
            self.assertTrue(os.path.exists(group.path))
        self.assertIsNone(group.path)

    def test_the_files_of_version_2(self):
        """In an imitation of its directory: the machine that runs this may have the other version."""
        def text(name):
            return race.read_text(os.path.join(group.path, name))
        with open(self.path("cgroup.controllers"), "w") as f:
            f.write("memory")
        with mock.patch.object(race.Cgroup, "ROOT", self.dir):
            self.assertEqual(race.Cgroup.version(), 2)
            with race.Cgroup(4096) as group:
                self.assertEqual(race.read_text(self.path("cgroup.subtree_control")), "+memory")
                self.assertEqual((text("memory.max"), text("memory.swap.max")), ("4096", "0"))
                group.enter()
                self.assertEqual(text("cgroup.procs"), str(os.getpid()))
                self.assertEqual((group.peak_bytes(), group.out_of_memory()), (None, False))
                for name, content in (("memory.peak", "123"), ("memory.events", "max 4\noom 1\noom_kill 1\n")):
                    with open(os.path.join(group.path, name), "w") as f:
                        f.write(content)
                self.assertEqual((group.peak_bytes(), group.out_of_memory()), (123, True))
                for name in os.listdir(group.path):  # the kernel's files go with their directory, these do not
                    os.unlink(os.path.join(group.path, name))

    def test_an_arm_that_cannot_fit_is_left_out_and_said(self):
        arms = [self.arm("a"), self.arm("big", more="min_ram = 1.1")]
        with mock.patch.object(race, "check_cgroups", return_value=True), \
                mock.patch.object(race, "run_once", return_value={"error": None}):
            self.race(arms, "--ram", "50%,120%,none", rounds=1)
        self.assertEqual([(s["cell"], s["arm"]) for s in self.samples()],
                         [("50%", "a"), ("120%", "a"), ("120%", "big"), ("none", "a"), ("none", "big")])
        self.assertEqual(self.lines()[0]["skipped"],
                         [{"cell": "50%", "arm": "big", "why": "it needs 1.1 times the model in memory"}])


class Shipped(unittest.TestCase):
    def test_every_adapter_is_understood(self):
        folder = os.path.join(ROOT, "bench/race/arms")
        values = {"model": "m", "prompt": "p", "prompt_file": "f", "n_predict": 1, "threads": 1, "ctx": 1,
                  "cache_mb": "auto", "record": None, "continuation_file": None, "sluice": "s", "plugin": "l",
                  "llama_bin": "b", "bmoe": "x"}
        names = set()
        for name in sorted(os.listdir(folder)):
            arm = race.Arm(os.path.join(folder, name), values)
            self.assertTrue(arm.table.get("includes"), name)  # what its number holds has to be said
            names.add(arm.name)
        self.assertEqual(len(names), len(os.listdir(folder)))

    def test_their_patterns_read_what_the_tools_say(self):
        values = {"model": "m", "prompt": "p", "prompt_file": "f", "n_predict": 1, "threads": 1, "ctx": 1,
                  "cache_mb": "auto", "record": None, "continuation_file": None, "sluice": "s", "plugin": "l",
                  "llama_bin": "b"}
        stock = race.Arm("stock-mmap", values)
        said = ("0.00.107 I common_perf_print: prompt eval time =       4.80 ms /     8 tokens (    0.60 ms per token,  "
                "1667.71 tokens per second)\n0.00.107 I common_perf_print:        eval time =       6.76 ms /     7 runs "
                "  (    0.97 ms per token,  1036.12 tokens per second)\n")
        streams = {"stdout": "", "stderr": said, "record": ""}
        self.assertEqual(race.number_of("decode", stock.table["decode"], streams), 1036.12)
        self.assertEqual(race.number_of("prefill", stock.table["prefill"], streams), 1667.71)


if __name__ == "__main__":
    unittest.main()
