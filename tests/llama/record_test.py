#!/usr/bin/env python3
"""Owns: the proof that the run record of real runs adds up: time, bytes, counts, and every output against the others.

Runs `sluice run`, `sluice serve` and the plug-in on the demo model with a cache far smaller than its experts. Only the
Python standard library, only the loopback interface. No assertion looks at how long anything took.
"""
import argparse
import contextlib
import csv
import fcntl
import filecmp
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import urllib.error
import urllib.request

ARGS = None
N = 16
PROMPT = "The Lord is my shepherd"
PARTS = ["overhead", "dense", "router", "shared", "routed", "wait_read", "wait_join", "wait_late", "wait_lock", "convert",
         "manage", "sample", "detokenise", "output", "draft", "record"]
# Equal in two runs of the same command, whatever the machine did meanwhile.
DETERMINISTIC = ["phase", "step", "tokens", "output_tokens", "exact_bytes", "exact_physical_bytes", "engine_bytes", "lookups",
                 "hits", "misses", "reads", "evictions_capacity", "rereads", "waves", "cache_bytes", "cache_slots",
                 "cache_resident"]


def environment(**extra):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "GGML_BACKEND", "LD_PRELOAD"))}
    return {**env, "SLUICE_NO_HISTORY": "1", **extra}


def whole(done):
    """llama.cpp's logger, which prints the text, may lose its end when a tool of its ends; the last line tells."""
    return b"graphs reused" in done.stderr


def run(*extra, code=0, prompt=PROMPT, n=N, command=None, env=None, tries=10):
    arguments = ["-m", ARGS.model, "-p", prompt, "-n", str(n), "-c", "512", "--temp", "0", "-t", "1"]
    done = subprocess.run((command or [ARGS.sluice, "run", "--cache-mb", "4"]) + arguments + list(extra), env=env or environment(),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=240)
    assert done.returncode == code, f"exit {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}"
    if command and command[0].endswith("llama-completion") and not whole(done) and tries > 1:
        return run(*extra, code=code, prompt=prompt, n=n, command=command, env=env, tries=tries - 1)
    return done


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def read(path):
    with open(path, "rb") as f:
        return f.read()


def of_kind(record, kind):
    return [line for line in record if line["kind"] == kind]


def table(path):
    with open(path, encoding="utf-8", newline="") as f:
        return list(csv.DictReader(line for line in f if not line.startswith("#")))


class RecordTest(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory(dir=os.path.dirname(ARGS.model) if ARGS.work is None else ARGS.work)
        self.addCleanup(self.work.cleanup)

    def path(self, name):
        return os.path.join(self.work.name, name)

    def check_rows(self, record):
        rows = of_kind(record, "row")
        self.assertGreater(len(rows), 0)
        for row in rows:
            self.assertEqual(sum(row[f"{p}_ns"] or 0 for p in PARTS), row["wall_ns"])
            self.assertEqual(row["hits"] + row["misses"], row["lookups"])
            self.assertEqual(row["exact_physical_bytes"], row["engine_bytes"])
            self.assertGreaterEqual(row["exact_physical_bytes"], row["exact_bytes"])
            self.assertLessEqual(row["read_busy_ns"], row["wall_ns"])
            for name, column in (("lookups", "lookups"), ("hits", "hits"), ("physical_bytes", "exact_physical_bytes"),
                                 ("routed_ns", "routed_ns")):
                self.assertEqual(sum(row["layers"][name]), row[column], name)
            self.assertEqual(sum(row["layers"]["wait_ns"]), row["wait_read_ns"] + row["wait_join_ns"] + row["wait_late_ns"])
        return rows

    def test_the_whole_loop_adds_up(self):
        files = {name: self.path(name) for name in ("record", "csv", "route-trace", "io-trace", "token-trace")}
        done = run(*[a for name, path in files.items() for a in (f"--{name}", path)])
        record = lines(files["record"])
        rows = self.check_rows(record)
        self.assertEqual(record[0]["scope"], "loop")
        self.assertIn("--cache-mb", record[0]["command"])
        self.assertNotIn(PROMPT, json.dumps(record), "a record is to be shown to others")
        self.assertEqual(record[-1]["status"], "ok")

        # No time between rows: what one leaves, the next one has.
        for a, b in zip(rows, rows[1:]):
            self.assertEqual(a["start_ns"] + a["wall_ns"], b["start_ns"])
        prefill = [r for r in rows if r["phase"] == 0]
        decode = [r for r in rows if r["phase"] == 1]
        self.assertEqual(sum(r["output_tokens"] for r in rows), N)
        self.assertEqual(len(decode), N - 1)
        self.assertEqual(sum(r["tokens"] for r in decode), N - 1)

        # The kernel has counted the same bytes, where nothing but direct reads reaches the drive.
        engine = sum(r["engine_bytes"] for r in rows)
        self.assertGreater(engine, 0)
        model = of_kind(record, "model")[0]
        if model["drive"] is not None and model["drive"]["direct"]:
            kernel = sum(r["kernel_bytes"] or 0 for r in rows)
            self.assertGreaterEqual(kernel, engine)
            self.assertLessEqual(kernel, engine * 1.01 + (4 << 20), "something else reads the drive")

        # Every other output says the same.
        csv_rows = table(files["csv"])
        self.assertEqual(len(csv_rows), len(rows))
        for c, r in zip(csv_rows, rows):
            self.assertEqual(int(c["wall_ns"]), r["wall_ns"])
            self.assertEqual(c["router_ns"], "")
            self.assertEqual(int(c["read_bytes"]), r["exact_physical_bytes"])
        reads = table(files["io-trace"])
        self.assertEqual(sum(int(r["read_bytes"]) for r in reads), engine)
        self.assertEqual(len(reads), sum(r["reads"] for r in rows))
        routes = table(files["route-trace"])
        layers, top_k = len(model["layers"]), model["top_k"]
        prompt_tokens = sum(r["tokens"] for r in prefill)
        # The last layer computes the prompt's last token only.
        self.assertEqual(len(routes), ((prompt_tokens + N - 1) * (layers - 1) + 1 + N - 1) * top_k)
        self.assertEqual(len({(r["layer"], r["step"]) for r in routes if r["phase"] == "1"}), layers * (N - 1))
        missed = {(r["phase"], r["step"] if r["phase"] == "1" else "", r["layer"], r["expert"])
                  for r in routes if r["residency"] == "0"}
        self.assertEqual(len(missed), sum(r["misses"] for r in rows))
        for token in {r["step"] for r in routes if r["phase"] == "1"}:
            weights = [float(r["weight"]) for r in routes if r["step"] == token and r["layer"] == "0" and r["phase"] == "1"]
            self.assertAlmostEqual(sum(weights), 1, places=3)
        experts = of_kind(record, "experts")[-1]
        self.assertEqual(sum(map(sum, experts["uses"])), len(routes))
        self.assertEqual(sum(map(sum, experts["misses"])), sum(r["misses"] for r in rows))

        with open(files["token-trace"], encoding="utf-8") as f:
            events = json.load(f)["traceEvents"]
        self.assertTrue(any(e.get("ph") == "X" for e in events))

        summary = of_kind(record, "summary")[-1]
        self.assertEqual(summary["phase"], "decode")
        self.assertEqual(summary["totals"]["wall_ns"], sum(r["wall_ns"] for r in decode))
        speed = f"generated {N} tokens at {summary['figures']['tokens_per_second']:.2f} tok/s"
        self.assertIn(speed, done.stderr.decode())
        rate = sum(r["hits"] for r in decode) / sum(r["lookups"] for r in decode)
        self.assertAlmostEqual(summary["figures"]["hit_rate"], rate)
        self.assertIn(f"decode hit rate {rate * 100:.1f} %", done.stderr.decode())

    def test_two_runs_agree_in_all_that_is_no_clock(self):
        records = []
        for name in ("a", "b"):
            # Which way a prompt is read may be decided by the clock.
            run("--record", self.path(name), "--io-engine", "io_uring" if name == "a" else "pread", "--prefill-mode", "micro")
            records.append(lines(self.path(name)))
        for a, b in zip(*(of_kind(r, "row") for r in records)):
            for column in DETERMINISTIC:
                self.assertEqual(a[column], b[column], column)
        for key in ("output_digest", "routes_digest"):
            self.assertEqual(records[0][-1][key], records[1][-1][key])
        text = subprocess.run([ARGS.sluice, "report", self.path("a"), self.path("b"), "--text"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60, check=True).stdout.decode()
        self.assertIn("io-engine", text)
        self.assertIn("A and B wrote the same text.", text)
        self.assertNotIn("digest", [line.split("|")[1].strip() for line in text.splitlines() if line.count("|") > 3])

    def test_a_random_seed_is_recorded_as_what_it_was(self):
        records = []
        for name, seed in (("a", []), ("b", ["-s"])):
            again = [] if not seed else ["-s", str(of_kind(records[0], "load")[0]["host"]["seed"])]
            run("--record", self.path(name), "--temp", "1.5", *again)
            records.append(lines(self.path(name)))
        self.assertNotEqual(of_kind(records[0], "load")[0]["host"]["seed"], 0xFFFFFFFF)
        self.assertEqual(records[0][-1]["output_digest"], records[1][-1]["output_digest"], "another text with that seed")

    def test_tracing_nodes_changes_no_text_and_tells_the_router(self):
        plain = run()
        traced = run("--compute-trace", self.path("nodes"), "--compute-trace-layers", self.path("layers"), "--record",
                     self.path("record"))
        self.assertEqual(plain.stdout, traced.stdout)
        rows = self.check_rows(lines(self.path("record")))
        self.assertTrue(all(r["router_ns"] > 0 for r in rows))
        nodes = table(self.path("nodes"))
        self.assertTrue(any(n["name"].startswith("ffn_moe_logits") for n in nodes))
        self.assertTrue(any(n["op"] == "MUL_MAT_ID" and n["routed"] == "1" for n in nodes))
        layers = {r["name"] for r in table(self.path("layers"))}
        self.assertIn("blk.0", layers)

    def test_the_plug_in_records_graphs(self):
        command = [os.path.join(ARGS.llama_bin, "llama-completion"), "-no-cnv", "--no-warmup"]
        stock = run(command=command)
        recorded = run(command=command, env=environment(LD_PRELOAD=ARGS.plugin, SLUICE_CACHE_MB="4",
                                                        SLUICE_RECORD=self.path("record")))
        self.assertEqual(stock.stdout, recorded.stdout)
        record = lines(self.path("record"))
        self.assertEqual(record[0]["scope"], "graph")
        rows = self.check_rows(record)
        self.assertEqual(len([r for r in rows if r["phase"] == 1]), N - 1)
        for row in rows:
            self.assertIsNone(row["sample_ns"])
            self.assertGreater(row["dense_ns"], 0)
        self.assertEqual(record[-1]["kind"], "end")
        warmed = run(command=command[:-1], env=environment(LD_PRELOAD=ARGS.plugin, SLUICE_CACHE_MB="4",
                                                           SLUICE_RECORD=self.path("warmed")))
        self.assertEqual(stock.stdout, warmed.stdout)
        self.assertEqual([r["tokens"] for r in of_kind(lines(self.path("warmed")), "row")], [r["tokens"] for r in rows],
                         "the warm-up is a row")

    def test_a_killed_run_leaves_a_readable_record(self):
        path = self.path("record")
        child = subprocess.Popen([ARGS.sluice, "run", "-m", ARGS.model, "--cache-mb", "1", "-p", PROMPT, "-n", "-1", "-c",
                                  "512", "--ignore-eos", "-t", "1", "--record", path], env=environment(),
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while child.poll() is None and time.monotonic() < deadline:
            if os.path.exists(path) and read(path).count(b'"kind":"row"') >= 5:
                break
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        text = read(path)
        self.assertGreaterEqual(text.count(b'"kind":"row"'), 5)
        self.assertNotIn(b'"kind":"end"', text)
        for whole in text.split(b"\n")[:-1]:
            json.loads(whole)
        report = subprocess.run([ARGS.sluice, "report", path, "--text"], stdout=subprocess.PIPE, timeout=60, check=True)
        self.assertIn(b"tok/s", report.stdout)

    def test_an_interrupted_run_says_so(self):
        path = self.path("record")
        child = subprocess.Popen([ARGS.sluice, "run", "-m", ARGS.model, "--cache-mb", "1", "-p", PROMPT, "-n", "-1", "-c",
                                  "512", "--ignore-eos", "-t", "1", "--record", path], env=environment(),
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        child.stdout.read(8)
        child.send_signal(signal.SIGINT)
        child.communicate()
        self.assertEqual(child.returncode, 130)
        record = lines(path)
        self.assertEqual(record[-1]["status"], "interrupted")
        self.check_rows(record)

    def test_a_file_that_cannot_be_opened_is_fatal_at_start(self):
        for flag in ("--record", "--csv", "--route-trace", "--route-features", "--io-trace", "--compute-trace", "--compute-trace-layers",
                     "--token-trace"):
            done = run(flag, "/nowhere/at/all", code=2)
            self.assertIn(flag.encode(), done.stderr)
            self.assertIn(b"/nowhere/at/all", done.stderr)
            self.assertEqual(done.stdout, b"")

    def test_a_model_is_never_overwritten(self):
        victim, link = self.path("victim.gguf"), self.path("link")
        shutil.copyfile(ARGS.model, victim)
        os.symlink(victim, link)
        for path in (victim, link):
            done = run("--record", path, code=2)
            self.assertIn(b"is a model", done.stderr)
        self.assertTrue(filecmp.cmp(ARGS.model, victim, shallow=False))

    def test_two_names_of_one_file_are_refused(self):
        a, b = self.path("a"), self.path("b")
        open(a, "w").close()
        os.symlink(a, b)
        done = run("--record", a, "--csv", b, code=2)
        self.assertIn(b"two outputs are to be written to", done.stderr)

    def test_a_command_that_fails_leaves_an_older_record_alone(self):
        path = self.path("record")
        run("--record", path, n=3)
        before = read(path)
        failed = subprocess.run([ARGS.sluice, "run", "-m", "/no/model.gguf", "-p", "x", "--record", path], env=environment(),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(failed.returncode, 1)
        self.assertEqual(read(path), before)

    def test_a_reader_that_leaves_ends_no_host(self):
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        reader = subprocess.Popen(["head", "-c", "10", fifo], stdout=subprocess.DEVNULL)
        command = [os.path.join(ARGS.llama_bin, "llama-completion"), "-no-cnv", "--no-warmup"]
        done = run(command=command, env=environment(LD_PRELOAD=ARGS.plugin, SLUICE_CACHE_MB="4", SLUICE_RECORD=fifo),
                   tries=1)  # the reader comes once
        reader.wait(30)
        stock = run(command=command).stdout
        self.assertTrue(stock == done.stdout or not whole(done) and stock.startswith(done.stdout), (stock, done.stdout))

    def test_two_expert_sets_in_a_layer_are_one_token(self):
        model = os.path.join(ARGS.tiny_models, "grovemoe-f16.gguf")
        done = subprocess.run([ARGS.sluice, "run", "-m", model, "-p", "The quick brown fox", "-n", "5", "-c", "256", "--temp", "0",
                               "--ignore-eos", "-t", "1", "--record", self.path("record")], env=environment(),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = self.check_rows(lines(self.path("record")))
        self.assertEqual([r["tokens"] for r in rows if r["phase"] == 1], [1] * 4)

    def test_a_full_disk_ends_the_output_and_not_the_run(self):
        for flag in ("--route-trace", "--route-features"):
            done = run(flag, "/dev/full", code=1)
            warnings = [line for line in done.stderr.splitlines() if b"warning" in line]
            self.assertEqual(len(warnings), 1, done.stderr)
            self.assertIn(b"the run goes on without this output", warnings[0])
        done = run("--record", "/dev/full", code=1)
        self.assertEqual(done.stdout, run().stdout)
        self.assertIn(b"/dev/full", done.stderr)

    def test_progress_is_a_protocol(self):
        done = run("--progress")
        words = [line.split(" ", 1) for line in done.stdout.decode().splitlines()]
        self.assertEqual({w for w, _ in words}, {"SLUICE_LOAD", "SLUICE_PROGRESS", "SLUICE_END"})
        text = "".join(json.loads(j)["delta_text"] for w, j in words if w == "SLUICE_PROGRESS")
        self.assertEqual(text.strip(), run().stdout.decode().strip())

    def test_progress_and_live_share_no_terminal_but_a_pipe(self):
        done = run("--progress", "--live")
        self.assertEqual({line.split(" ", 1)[0] for line in done.stdout.decode().splitlines()},
                         {"SLUICE_LOAD", "SLUICE_PROGRESS", "SLUICE_END"})
        ours, theirs = os.openpty()
        refused = subprocess.run([ARGS.sluice, "run", "-m", ARGS.model, "-p", "x", "--progress", "--live"], env=environment(),
                                 stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, timeout=60)
        os.close(theirs)
        self.assertEqual(refused.returncode, 2)
        self.assertIn(b"both write to this terminal", os.read(ours, 4096))
        os.close(ours)

    def test_the_loading_bar_fits_a_narrow_terminal(self):
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
        subprocess.run([ARGS.sluice, "run", "-m", ARGS.model, "-p", "x", "-n", "1", "--cache-mb", "4", "--temp", "0", "-t", "1"],
                       env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, timeout=60, check=True)
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # what the end of a pseudo-terminal is
            while piece := os.read(ours, 65536):
                shown += piece
        os.close(ours)
        bars = [line for line in shown.decode().replace("\x1b[K", "\r").split("\r") if line.startswith("loading")]
        self.assertGreater(len(bars), 0)
        self.assertLess(max(map(len, bars)), 30)
        self.assertTrue(shown.rindex(b"\r\x1b[K") > shown.rindex(b"loading"), "the bar is not gone at the end")

    def test_the_server_has_metrics_and_a_record(self):
        with socket.socket() as a, socket.socket() as b:
            a.bind(("127.0.0.1", 0)), b.bind(("127.0.0.1", 0))
            port, metrics_port = a.getsockname()[1], b.getsockname()[1]
        command = [ARGS.sluice, "serve", "-m", ARGS.model, "--cache-mb", "4", "-c", "1024", "-np", "2", "-t", "1",
                   "--host", "127.0.0.1", "--port", str(port), "--metrics-port", str(metrics_port), "--record",
                   self.path("record")]
        with open(self.path("log"), "wb") as log:
            server = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.wait_for(f"http://127.0.0.1:{port}/health", server)
            body = json.dumps({"prompt": PROMPT, "n_predict": 6, "temperature": 0}).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=120) as answer:
                self.assertEqual(answer.status, 200)
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30) as answer:
                self.assertTrue(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
                text = answer.read().decode()
            self.assertRegex(text, r'sluice_lookups_total\{[^}]*phase="decode"[^}]*\} [1-9]')
            with self.assertRaises(urllib.error.HTTPError):
                urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/", timeout=30)
            # Nobody else may listen there.
            taken = subprocess.run(command[:-2], env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, timeout=60)
            self.assertEqual(taken.returncode, 1)
            self.assertIn(b"--metrics-port", taken.stdout)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
        record = lines(self.path("record"))
        rows = self.check_rows(record)
        self.assertEqual(record[-1]["kind"], "end")
        self.assertEqual(record[0]["program"], "sluice serve")
        self.assertGreaterEqual(len([r for r in rows if r["phase"] == 1]), 5)
        # Neither the warm-up nor the server's trial of its memory: two tokens each, which nobody asked for.
        self.assertTrue(all(r["tokens"] > 2 for r in rows if r["phase"] == 0), "a trial run is a row")

    def wait_for(self, url, server):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and server.poll() is None:
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.05)
        self.fail("the server did not start: " + read(self.path("log")).decode(errors="replace")[-2000:])

    def test_options_without_effect_are_errors(self):
        for command, extra in (("bench", ["--live"]), ("serve", ["--progress"]), ("run", ["--metrics-port", "9"]),
                               ("serve", ["--metrics-port", "9"])):
            arguments = [] if command == "serve" and extra[0] == "--metrics-port" else ["-m", ARGS.model]
            done = subprocess.run([ARGS.sluice, command] + arguments + extra, env=environment(), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
            self.assertEqual(done.returncode, 2, (command, extra))
            self.assertIn(b"sluice: error:", done.stderr)


def main():
    global ARGS
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("sluice", "plugin", "llama-bin", "model", "tiny-models"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--work", help="where files are written; on a real file system, so that direct reads count")
    ARGS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0]] + rest, verbosity=2)


if __name__ == "__main__":
    main()
