#!/usr/bin/env python3
"""Owns: the proof that lossy options do what docs/lossy.md says, in whole programs: off and nearly off they change no byte,
on they are named in every output, counted, repeatable, and refused where they cannot act.

Runs `sluice` and stock's tools on the demo model with a cache smaller than its experts. No assertion looks at how long
anything took.
"""
import argparse
import csv
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ARGS = None
PROMPT = "The Lord is my shepherd"


def environment(**extra):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "GGML_BACKEND", "LD_PRELOAD"))}
    return {**env, "SLUICE_NO_HISTORY": "1", **extra}


def call(command, code=0, env=None, tries=10):
    done = subprocess.run(command, env=env or environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=280)
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    # llama.cpp's logger, which prints the text, may lose its end when a tool of its ends; the last line tells.
    if command[0].endswith("llama-completion") and done.returncode == 0 and "graphs reused" not in err and tries > 1:
        return call(command, code, env, tries - 1)
    assert done.returncode == code, f"{' '.join(command)}: exit {done.returncode}, wanted {code}: {err[-2000:]}"
    return out, err


def run(*extra, code=0, n=24, cache="4"):
    return call([ARGS.sluice, "run", "-m", ARGS.model, "-p", PROMPT, "-n", str(n), "-c", "256", "--temp", "0", "-t", "1",
                 "--cache-mb", cache, *extra], code)


def options(flag_set):
    return flag_set.split()


class Drop(unittest.TestCase):
    def test_nearly_off_is_off(self):
        self.assertEqual(run()[0], run("--drop-cold-experts", "1e-20")[0])

    def test_it_is_named_and_counted_everywhere(self):
        with tempfile.TemporaryDirectory() as work:
            record, table, routes = (os.path.join(work, f) for f in ("r.jsonl", "r.csv", "routes.csv"))
            _, err = run("--drop-cold-experts", "0.9", "--record", record, "--csv", table, "--route-trace", routes)
            summary = [line for line in err.splitlines() if line.startswith("lossy:")]
            self.assertEqual(len(summary), 1)
            self.assertRegex(summary[0], r"--drop-cold-experts 0\.9: [0-9.]+ % of \d+ routed slots dropped")
            with open(record, encoding="utf-8") as f:
                rows = [json.loads(line) for line in f]
            self.assertEqual(rows[0]["lossy"], ["--drop-cold-experts 0.9"])
            decode = [r for r in rows if r.get("kind") == "row" and r["phase"] == 1]
            prompt = [r for r in rows if r.get("kind") == "row" and r["phase"] == 0]
            dropped = sum(r["dropped"] for r in decode)
            self.assertGreater(dropped, 0)
            for r in decode:
                self.assertEqual(r["unedited"], 0)
                self.assertGreater(r["routed"], 0)
                self.assertGreaterEqual(r["lookups"], r["routed"] - r["dropped"])
            for r in prompt:
                self.assertIsNone(r["dropped"])
            with open(table, encoding="utf-8") as f:
                head = [line for line in f if line.startswith("#")]
            self.assertIn("# lossy=--drop-cold-experts 0.9\n", [line.replace('"', "") for line in head])
            with open(routes, encoding="utf-8") as f:
                traced = list(csv.DictReader(line for line in f if not line.startswith("#")))
            gone = [t for t in traced if t["dropped"] == "1"]
            self.assertEqual(len(gone), dropped)
            for t in gone:
                self.assertEqual((t["phase"], t["expert_bytes"], t["residency"]), ("1", "0", "0"))
                self.assertGreater(float(t["weight"]), 0)
            out, err = call([ARGS.sluice, "replay", routes, "--slots", "4"])
            self.assertIn("23 tokens of decode", out)
            self.assertIn("is of a run with --drop-cold-experts 0.9", err)
            with open(routes, encoding="utf-8") as f:
                self.assertIn("# lossy=--drop-cold-experts 0.9\n", list(f))

    def test_a_careless_one_reads_less(self):
        with tempfile.TemporaryDirectory() as work:
            sums = []
            for extra in ([], ["--drop-cold-experts", "1"]):
                record = os.path.join(work, f"{len(extra)}.jsonl")
                run("--record", record, *extra)
                with open(record, encoding="utf-8") as f:
                    rows = [json.loads(line) for line in f]
                sums.append(sum(r["exact_bytes"] for r in rows if r.get("kind") == "row" and r["phase"] == 1))
            self.assertLess(sums[1], sums[0])

    def test_deterministic_says_the_same_again(self):
        texts = {run("--drop-cold-experts", "0.9", "--deterministic", *way)[0]
                 for way in ([], [], ["--no-overlap"], ["--io-threads", "1"], ["--io-engine", "pread"], ["--wave", "64"])}
        self.assertEqual(len(texts), 1)

    def test_it_is_no_run_that_plans_are_judged_by(self):
        for extra, kept in (([], True), (["--drop-cold-experts", "0.5"], False)):
            with tempfile.TemporaryDirectory() as work:
                env = environment(SLUICE_CACHE_DIR=work)
                del env["SLUICE_NO_HISTORY"]
                call([ARGS.sluice, "run", "-m", ARGS.model, "-p", PROMPT, "-n", "12", "-c", "256", "--temp", "0", "-t", "1", "--cache-mb", "4",
                      *extra], env=env)
                self.assertEqual(os.path.exists(os.path.join(work, "runs.jsonl")), kept)

    def test_with_the_plugin_it_is_the_same_and_says_so(self):
        command = [os.path.join(ARGS.llama_bin, "llama-completion"), "-m", ARGS.model, "-p", PROMPT, "-n", "24", "-c", "256", "--temp", "0",
                   "-t", "1", "-no-cnv", "--no-warmup", "--no-display-prompt"]
        stock, _ = call(command)
        plugin = {"LD_PRELOAD": ARGS.plugin, "SLUICE_CACHE_MB": "4", "SLUICE_DETERMINISTIC": "1"}
        nearly, err = call(command, env=environment(**plugin, SLUICE_DROP_COLD_EXPERTS="1e-20"))
        self.assertEqual(nearly, stock)
        self.assertIn("without --drop-cold-experts 1e-20", err)
        harsh, _ = call(command, env=environment(**plugin, SLUICE_DROP_COLD_EXPERTS="0.9"))
        ours, _ = run("--drop-cold-experts", "0.9", "--deterministic", "--no-display-prompt")
        self.assertEqual(harsh.strip(), ours.strip())

    def test_what_cannot_be_is_refused(self):
        _, err = run("--deterministic", code=2)
        self.assertIn("no effect", err)
        _, err = call([ARGS.sluice, "run", "-m", ARGS.model, "-p", "x", "--drop-cold-experts", "1", "--deterministic"], 2)
        self.assertIn("--cache-mb", err)
        _, err = call([ARGS.sluice, "perplexity", "-m", ARGS.model, "-f", ARGS.text, "--drop-cold-experts", "0.5"], 2)
        self.assertIn("sluice quality", err)
        self.assertIn("--drop-cold-experts 0.5", err)


# Blocks of one layer in a run of 12 tokens whose choice cannot be changed: top-1 and weights before the experts.
UNCHANGEABLE = {"llama4-f16"}
ARCHITECTURES = ["bailingmoe3-f16", "deepseek2-mixed", "deepseek4-mxfp4_moe", "gemma4-q4_k_m", "glm4moe-groups-f16", "gpt-oss-mxfp4_moe",
                 "grovemoe-q8_0", "lfm2moe-q4_0", "llama-iq3_s", "llama4-f16", "nemotron_h_moe-q4_k_m", "olmoe-q6_k",
                 "qwen2moe-q4_k_m", "qwen35moe-fused-f16", "qwen3moe-mixed", "qwen3moe-odd-q4_0", "qwen3moe-top1-f16", "qwen4exp-q8_0",
                 "smallthinker-q4_0"]


class Architectures(unittest.TestCase):
    def run_one(self, name, *extra):
        with tempfile.TemporaryDirectory() as work:
            record = os.path.join(work, "r.jsonl")
            out, _ = call([ARGS.sluice, "run", "-m", os.path.join(ARGS.tiny_models, name + ".gguf"), "-p", "hello there", "-n", "12",
                           "-c", "64", "--temp", "0", "--cache-mb", "0.3", "--record", record, *extra])
            with open(record, encoding="utf-8") as f:
                rows = [r for r in map(json.loads, f) if r.get("kind") == "row" and r["phase"] == 1]
            return out, {c: sum(r[c] or 0 for r in rows) for c in ("routed", "dropped", "substituted", "unedited", "lookups")}

    def test_each_is_changed_by_rule_and_repeatably(self):
        for name in ARCHITECTURES:
            with self.subTest(name):
                plain, _ = self.run_one(name, "-t", "1")
                nearly, counts = self.run_one(name, "-t", "1", "--drop-cold-experts", "1e-20")
                self.assertEqual(nearly, plain)
                self.assertEqual(counts["dropped"], 0)
                self.assertEqual(counts["unedited"] > 0, name in UNCHANGEABLE)
                harsh = ["--drop-cold-experts", "4", "--expert-substitute", "0.5", "--deterministic"]
                one, counts = self.run_one(name, "-t", "1", *harsh)
                two, again = self.run_one(name, "-t", "1", "--io-engine", "pread", "--no-overlap", *harsh)
                self.assertEqual(counts, again)
                self.assertEqual(one, two)
                if name in UNCHANGEABLE or "top1" in name:
                    self.assertEqual(one, plain)
                    self.assertEqual(counts["dropped"] + counts["substituted"], 0)
                else:
                    self.assertGreater(counts["dropped"], 0)
                    self.assertLessEqual(counts["lookups"], counts["routed"] - counts["dropped"])


class Idle(unittest.TestCase):
    def test_what_changes_nothing_is_not_called_lossy(self):
        facts = json.loads(call([ARGS.sluice, "inspect", ARGS.model, "--json"])[0])
        plain = run("--no-display-prompt")[0]
        layers, used = facts["layers"], facts["experts_used"]
        with tempfile.TemporaryDirectory() as work:
            for extra, warnings in ((["--route-ahead", str(layers)], 1), (["--route-ahead", "64", "--route-ahead-weights", "predicted"], 1),
                                    (["--n-expert-used", str(used)], 0)):
                record = os.path.join(work, "r.jsonl")
                out, err = run("--no-display-prompt", "--record", record, *extra)
                self.assertEqual(out, plain, extra)
                self.assertIn("lossy:    none", err)
                self.assertNotIn("not what it would answer", err)
                self.assertEqual(err.count("acts on no layer"), warnings, err)
                with open(record, encoding="utf-8") as f:
                    self.assertEqual(json.loads(f.readline())["lossy"], [])
        # Beside an override that says otherwise it is no agreement with the model.
        _, err = run("--n-expert-used", str(used), "--override-kv", f"{facts['architecture']}.expert_used_count=int:{used + 1}", code=2)
        self.assertIn("already", err)


class ExpertsUsed(unittest.TestCase):
    def stock(self, n, override):
        out, _ = call([os.path.join(ARGS.llama_bin, "llama-completion"), "-m", ARGS.model, "-p", PROMPT, "-n", str(n), "-c", "256",
                       "--temp", "0", "-t", "1", "--no-display-prompt", "-no-cnv", "--no-warmup", "--override-kv", override])
        return out.strip()

    def test_it_is_llama_cpps_override(self):
        words, _ = call([ARGS.sluice, "inspect", ARGS.model, "--json"])
        facts = json.loads(words)
        arch, used = facts["architecture"], facts["experts_used"]
        texts = set()
        for n in {1, max(1, used - 1), used + 1}:
            ours, err = run("--n-expert-used", str(n), "--no-display-prompt")
            self.assertEqual(ours.strip(), self.stock(24, f"{arch}.expert_used_count=int:{n}"), n)
            self.assertIn(f"lossy:    --n-expert-used {n}", err)
            texts.add(ours)
        self.assertGreater(len(texts), 1)

    def test_more_than_the_model_says_is_no_warm_up(self):
        # Only the plug-in can meet it: the program that loads the model decides.
        with tempfile.TemporaryDirectory() as work:
            record = os.path.join(work, "r.jsonl")
            facts = json.loads(call([ARGS.sluice, "inspect", ARGS.model, "--json"])[0])
            call([os.path.join(ARGS.llama_bin, "llama-completion"), "-m", ARGS.model, "-p", PROMPT, "-n", "8", "-c", "256", "--temp", "0",
                  "-t", "1", "-no-cnv", "--override-kv", f"{facts['architecture']}.expert_used_count=int:{facts['experts_used'] + 1}"],
                 env=environment(LD_PRELOAD=ARGS.plugin, SLUICE_CACHE_MB="4", SLUICE_DROP_COLD_EXPERTS="1", SLUICE_RECORD=record))
            with open(record, encoding="utf-8") as f:
                rows = [r for r in map(json.loads, f) if r.get("kind") == "row"]
            self.assertEqual(sum(r["phase"] == 1 for r in rows), 7)
            self.assertGreater(sum(r["dropped"] or 0 for r in rows), 0)

    def test_what_no_model_has_is_refused(self):
        _, err = run("--n-expert-used", "60000", code=2)
        self.assertIn("experts in a layer", err)
        for text in ("-1", "x", "1.5"):
            run("--n-expert-used", text, code=2)
        _, err = call([ARGS.sluice, "bench", "-m", ARGS.model, "--n-expert-used", "1"], 2)
        self.assertIn("no effect in sluice bench", err)
        arch = json.loads(call([ARGS.sluice, "inspect", ARGS.model, "--json"])[0])["architecture"]
        for value in (f"{arch}.expert_used_count=int:2", f"x.y=int:1,{arch}.expert_used_count=int:2"):
            _, err = run("--n-expert-used", "1", "--override-kv", value, code=2)
            self.assertIn("already", err)
        # Another architecture's key says nothing of this model.
        out, _ = run("--n-expert-used", "1", "--override-kv", f"x{arch}.expert_used_count=int:2")
        self.assertEqual(out, run("--n-expert-used", "1")[0])

    def test_more_than_llama_cpps_graph_has_room_for_is_refused_not_aborted(self):
        with tempfile.TemporaryDirectory() as work:
            model = os.path.join(work, "many.gguf")
            call([ARGS.make_model, "--arch", "qwen3moe", "--layers", "12", "--experts", "64", "--top-k", "4", "--type", "f16", "-o", model])
            for command in (["run", "-p", "x", "-n", "1"], ["chat", "-p", "x", "-n", "1", "-st"],
                            ["quality", "--file", ARGS.text, "--tokens", "4", "--prefix", "4", "--battery", "none"]):
                _, err = call([ARGS.sluice, command[0], "-m", model, *command[1:], "--cache-mb", "4", "-c", "64", "--n-expert-used", "64"], 2)
                self.assertIn("has no room for so many experts", err)
            call([ARGS.sluice, "run", "-m", model, "-p", "x", "-n", "2", "-c", "64", "--cache-mb", "4", "--n-expert-used", "5"])

    def test_the_plugin_names_the_override(self):
        done = subprocess.run([os.path.join(ARGS.llama_bin, "llama-completion"), "-m", ARGS.model, "-p", "x", "-n", "1", "-no-cnv"],
                              env=environment(LD_PRELOAD=ARGS.plugin, SLUICE_N_EXPERT_USED="1", SLUICE_CACHE_MB="4"),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=200)
        self.assertNotEqual(done.returncode, 0)
        self.assertGreaterEqual(done.returncode, 0, "it crashed")
        self.assertIn(b"--override-kv", done.stderr)
        self.assertIn(b"expert_used_count=int:1", done.stderr)


class Serve(unittest.TestCase):
    def test_the_server_drops_and_says_so(self):
        with socket.socket() as a, socket.socket() as b:
            a.bind(("127.0.0.1", 0))
            b.bind(("127.0.0.1", 0))
            port, metrics = a.getsockname()[1], b.getsockname()[1]
        server = subprocess.Popen([ARGS.sluice, "serve", "-m", ARGS.model, "--host", "127.0.0.1", "--port", str(port), "--metrics-port",
                                   str(metrics), "--cache-mb", "4", "-c", "512", "-t", "1", "--drop-cold-experts", "0.9",
                                   "--n-expert-used", "3", "--route-ahead", "1", "--route-ahead-router", "full"], env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE)
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                        if answer.status == 200:
                            break
                except OSError:
                    self.assertLess(time.monotonic(), deadline, "the server does not come up")
                    time.sleep(0.1)
            ask = json.dumps({"prompt": PROMPT, "n_predict": 24, "temperature": 0}).encode()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/completion", data=ask, timeout=120) as answer:
                self.assertTrue(json.load(answer)["content"])
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=30) as answer:
                told = answer.read().decode()
        finally:
            server.send_signal(signal.SIGINT)
            _, err = server.communicate(timeout=60)
        for option in ("--drop-cold-experts 0.9", "--n-expert-used 3", "--route-ahead 1"):
            self.assertIn(f'sluice_lossy_info{{option="{option}"}} 1', told)
        self.assertRegex(told, r'sluice_dropped_total\{phase="decode"\} [1-9]')
        self.assertIn("without --n-expert-used 3, --route-ahead 1, --drop-cold-experts 0.9", err.decode())
        self.assertRegex(err.decode(), r"lossy options: --n-expert-used 3, --route-ahead 1, --drop-cold-experts 0\.9: [0-9.]+ % of \d+ routed slots dropped")
        self.assertRegex(told, r'sluice_ra_committed_total\{phase="decode"\} [1-9]')
        self.assertRegex(err.decode(), r"moe-route-ahead: 1 layers early: [1-9]\d* routings committed")


class RouteAhead(unittest.TestCase):
    def test_bench_and_the_plugin_count_what_was_committed(self):
        out, err = call([ARGS.sluice, "bench", "-m", ARGS.model, "-p", "0", "-n", "12", "-r", "1", "-t", "1", "--cache-mb", "4",
                         "--route-ahead", "1"])
        self.assertRegex(err, r"moe-route-ahead: 1 layers early: [1-9]\d* routings committed, [1-9]\d* passed through")
        self.assertRegex(err, r"agreed with the router on [0-9.]+ % of slots")
        with tempfile.TemporaryDirectory() as work:
            record = os.path.join(work, "r.jsonl")
            _, err = call([os.path.join(ARGS.llama_bin, "llama-completion"), "-m", ARGS.model, "-p", PROMPT, "-n", "12", "-c", "256",
                           "--temp", "0", "-t", "1", "-no-cnv", "--no-warmup"],
                          env=environment(LD_PRELOAD=ARGS.plugin, SLUICE_CACHE_MB="4", SLUICE_ROUTE_AHEAD="1", SLUICE_RECORD=record))
            self.assertIn("without --route-ahead 1", err)
            with open(record, encoding="utf-8") as f:
                lines = [json.loads(line) for line in f]
        # Its routers are small: none of them ranks in 8 bits.
        self.assertEqual(lines[0]["lossy"], ["--route-ahead 1"])
        rows = [r for r in lines if r.get("kind") == "row" and r["phase"] == 1]
        for column in ("ra_committed", "ra_passed", "ra_passed_below", "ra_passed_first", "ra_slots", "ra_agreed"):
            self.assertGreater(sum(r[column] or 0 for r in rows), 0, column)

    def test_the_plugin_does_not_name_what_changes_nothing(self):
        with tempfile.TemporaryDirectory() as work:
            record = os.path.join(work, "r.jsonl")
            _, err = call([os.path.join(ARGS.llama_bin, "llama-completion"), "-m", ARGS.model, "-p", PROMPT, "-n", "4", "-c", "256",
                           "--temp", "0", "-t", "1", "-no-cnv", "--no-warmup"],
                          env=environment(LD_PRELOAD=ARGS.plugin, SLUICE_CACHE_MB="4", SLUICE_ROUTE_AHEAD="64", SLUICE_RECORD=record))
            self.assertIn("acts on no layer", err)
            with open(record, encoding="utf-8") as f:
                self.assertEqual(json.loads(f.readline())["lossy"], [])


class Quality(unittest.TestCase):
    def quality(self, *extra, code=0):
        return call([ARGS.sluice, "quality", "-m", ARGS.model, "--file", ARGS.text, "--tokens", "48", "--prefix", "16", "-t", "1",
                     "--cache-mb", "4", *extra], code)

    def test_what_changes_nothing_is_no_distance_away_and_what_is_harsh_is(self):
        out, _ = self.quality("--json", "--with", "--drop-cold-experts 1e-20", "--with", "--drop-cold-experts 1000",
                              "--with", "--n-expert-used 1")
        runs = json.loads(out)["runs"]
        self.assertEqual([r["lossy"] for r in runs], [[], ["--drop-cold-experts 1e-20"], ["--drop-cold-experts 1000"],
                                                      ["--n-expert-used 1"]])
        self.assertEqual([r["decode_tokens"] for r in runs], [48] * 4)
        lossless, nothing, harsh, fewer = runs
        self.assertIsNone(lossless["kl_divergence"])
        self.assertGreater(lossless["bytes_per_token"], 0)
        self.assertEqual(nothing["kl_divergence"], 0)
        self.assertEqual(nothing["same_top"], 1)
        self.assertEqual(nothing["perplexity"], lossless["perplexity"])
        self.assertEqual(nothing["answers_same"], 16)
        self.assertEqual(nothing["tasks_right"], lossless["tasks_right"])
        for lossy in (harsh, fewer):
            self.assertGreater(lossy["kl_divergence"], 0)
            self.assertLess(lossy["same_top"], 1)
            self.assertGreater(lossy["perplexity"], lossless["perplexity"])
            self.assertLess(lossy["bytes_per_token"], lossless["bytes_per_token"])
        self.assertGreater(harsh["dropped_share"], 0)

    def test_a_battery_of_ones_own_and_the_other_forms(self):
        with tempfile.TemporaryDirectory() as work:
            battery = os.path.join(work, "b.tsv")
            with open(battery, "w", encoding="utf-8") as f:
                f.write("# one that is always right, and one that never is\nThe Lord\t |.|e|a|o\nThe Lord\t\\n\\nqqxx\n")
            out, _ = self.quality("--battery", battery, "--csv", "-", "--drop-cold-experts", "0.5")
            rows = list(csv.DictReader(out.splitlines()))
            self.assertEqual([r["options"] for r in rows], ["lossless", "--drop-cold-experts 0.5"])
            self.assertEqual(rows[0]["tasks_right"], "1")
            out, _ = self.quality("--battery", "none", "--drop-cold-experts", "0.5")
            self.assertIn("lossless", out)
            self.assertIn("tok/s", out)

    def test_rows_go_to_files_and_the_table_stays(self):
        with tempfile.TemporaryDirectory() as work:
            table, lines = os.path.join(work, "t.csv"), os.path.join(work, "l.jsonl")
            out, _ = self.quality("--csv", table, "--jsonl", lines, "--tokens", "8", "--battery", "none", "--drop-cold-experts", "0.5")
            self.assertIn("tok/s", out)
            with open(table, encoding="utf-8") as f:
                self.assertEqual([r["options"] for r in csv.DictReader(f)], ["lossless", "--drop-cold-experts 0.5"])
            with open(lines, encoding="utf-8") as f:
                self.assertEqual([json.loads(line).get("options") for line in f], [None, "lossless", "--drop-cold-experts 0.5"])
            # Before the first run.
            _, err = self.quality("--csv", os.path.join(work, "none", "t.csv"), "--drop-cold-experts", "0.5", code=1)
            self.assertIn("cannot open", err)
            self.assertNotIn("measured", err)

    def test_a_set_is_called_by_all_that_it_changes(self):
        out, _ = self.quality("--csv", "-", "--tokens", "8", "--battery", "none", "--with", "--drop-cold-experts 0.5 --deterministic",
                              "--with", "--cache-mb 3 --no-overlap --drop-cold-experts 0.5")
        self.assertEqual([r["options"] for r in csv.DictReader(out.splitlines())],
                         ["lossless", "--drop-cold-experts 0.5 --deterministic", "--drop-cold-experts 0.5 --cache-mb 3 --no-overlap"])

    def test_what_was_measured_is_there_when_it_is_and_stays_when_it_ends(self):
        command = [ARGS.sluice, "quality", "-m", ARGS.model, "--file", ARGS.text, "--tokens", "16", "--prefix", "8", "-t", "1",
                   "--cache-mb", "4", "--battery", "none"]
        harsh = [x for n in range(40) for x in ("--with", f"--drop-cold-experts {n + 1}")]
        for form in ("--jsonl", "--csv", ""):
            going = subprocess.Popen([*command, *harsh, *([form, "-"] if form else [])], env=environment(), stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            # One run is over, and said so while others go on.
            lines = iter(going.stderr.readline, "")
            said = next(line for line in lines if "runs measured" in line)
            self.assertIn("1 of 41 runs measured: lossless, perplexity", said)
            going.send_signal(signal.SIGINT)
            out, err = going.communicate(timeout=120)
            self.assertEqual(going.returncode, 130, err)
            self.assertRegex(err, r"interrupted: \d+ of 41 runs were measured")
            rows = out.splitlines()
            if form == "--jsonl":
                rows = [json.loads(row) for row in rows]
                self.assertEqual((rows[0]["sluice_quality"], rows[0]["scored_tokens"]), (1, 16))
                self.assertEqual(rows[1]["options"], "lossless")
                self.assertGreater(rows[1]["perplexity"], 1)
            else:
                self.assertTrue(any(row.startswith("lossless") for row in rows), out)

    def test_a_cache_of_everything_prices_nothing_and_is_named(self):
        _, err = self.quality("--battery", "none", "--tokens", "8", "--cache-mb", "512", "--with", "--drop-cold-experts 4", "--with",
                              "--n-expert-used 1")
        warnings = [line for line in err.splitlines() if "the cache holds all" in line]
        self.assertEqual(len(warnings), 1, err)
        self.assertIn("--drop-cold-experts 4", warnings[0])
        _, err = self.quality("--battery", "none", "--tokens", "8", "--with", "--drop-cold-experts 4")
        self.assertNotIn("the cache holds all", err)

    def test_what_it_cannot_do_it_says(self):
        for extra, words in ((["--drop-cold-experts", "1", "-p", "hello"], "-p has no effect"),
                             (["--drop-cold-experts", "1", "--chat-template", "chatml"], "--chat-template has no effect"),
                             (["--drop-cold-experts", "1", "--json", "--jsonl", "-"], "one of"),
                             (["--drop-cold-experts", "1", "--csv"], "--csv FILE, or --csv -"),
                             (["--jsonl", "--drop-cold-experts", "1"], "--jsonl FILE, or --jsonl -"),
                             (["--drop-cold-experts", "1", "--csv", ARGS.text], f"{ARGS.text} is read, and an output"),
                             (["--drop-cold-experts", "1", "--jsonl", ARGS.model], f"{ARGS.model} is read, and an output"),
                             (["--drop-cold-experts", "0.5", "--tokens", "1000000"], "tokens"),
                             ([], "nothing to compare"),
                             (["--with", "--cache-mb 3"], "nothing lossy"),
                             (["--with", "--frobnicate"], "is none"),
                             (["--drop-cold-experts", "1", "--record", "x"], "sluice run"),
                             (["--with", "--drop-cold-experts 1 --record x"], "sluice run"),
                             (["--drop-cold-experts", "1", "--profile", "x"], "--profile x"),
                             (["--with", "--drop-cold-experts 1 --profile x"], "--profile x"),
                             (["--drop-cold-experts", "1", "--file", "/"], "cannot be read"),
                             (["--drop-cold-experts", "1", "--battery", "/nonexistent"], "cannot be read")):
            _, err = self.quality(*extra, code=2)
            self.assertIn(words, err)

    def test_a_set_that_the_model_cannot_take_is_refused_before_the_first_run(self):
        out, err = self.quality("--csv", "-", "--battery", "none", "--with", "--drop-cold-experts 1", "--with", "--n-expert-used 999", code=2)
        self.assertEqual((out, "runs measured" in err), ("", False), err)
        # What only loading would tell: this cache holds no expert.
        out, err = self.quality("--csv", "-", "--battery", "none", "--with", "--drop-cold-experts 1", "--with",
                                "--drop-cold-experts 2 --cache-mb 0.01", code=1)
        self.assertEqual((out, "runs measured" in err), ("", False), err)
        self.assertIn("--drop-cold-experts 2", err)

    def test_the_output_is_not_the_text(self):
        with tempfile.NamedTemporaryFile("w+b") as text:
            with open(ARGS.text, "rb") as whole:
                text.write(whole.read())
            text.flush()
            size = os.path.getsize(text.name)
            with open(text.name, "ab") as out:
                done = subprocess.run([ARGS.sluice, "quality", "-m", ARGS.model, "--file", text.name, "--drop-cold-experts", "1"],
                                      stdout=out, stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"{text.name} is read, and the output", done.stderr)
            self.assertEqual(os.path.getsize(text.name), size)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("sluice", "plugin", "llama-bin", "model", "text", "tiny-models", "make-model"):
        parser.add_argument("--" + name, required=True)
    ARGS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
