#!/usr/bin/env python3
"""Owns: what Sluice costs when every expert is in its cache: llama-bench with the plug-in against stock llama.cpp.

One row for each model, number of threads and phase. A process measures prefill, then decode, so that decode begins with
every expert read; the first repetitions of a process are left out, because in them experts come, pages are touched and
clocks rise. Arms are interleaved A/B/B/A; medians and spread are printed, with the drift of the control (stock).

Two numbers each: tok/s, which wants an idle machine, and the processor's seconds of the whole process, which a machine
that others use as well spoils less (its caches and memory are still shared). Loading is in the second, so compare it only
between arms of one row. Writes Markdown to standard output.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import MIB, summary  # noqa: E402


def run(args, model, threads, streaming):
    """([prefill tok/s], [decode tok/s], user seconds) of one process."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_") and k not in ("GGML_BACKEND_PATH", "LD_PRELOAD")}
    if streaming:
        full = os.path.getsize(model) * 12 // 10 // MIB + 64  # padding of slots included
        env.update({"GGML_BACKEND_PATH": args.plugin, "SLUICE_CACHE_MB": str(full), "SLUICE_LOG": "warn"})
    command = [args.llama_bench, "-m", model, "-t", str(threads), "-p", str(args.prompt), "-n", str(args.gen),
               "-r", str(args.repetitions), "-o", "json"] + args.flags.split()
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    user = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    tests = {t["n_gen"] > 0: t["samples_ts"][args.skip:] for t in json.loads(done.stdout)}
    return tests[False], tests[True], user


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama-bench", required=True)
    p.add_argument("--plugin", required=True)
    p.add_argument("--models", nargs="+", required=True)
    p.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--repetitions", type=int, default=4, help="of each test in a process")
    p.add_argument("--skip", type=int, default=1, help="the first repetitions that do not count")
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--flags", default="", help="more flags for both arms, as one word")
    args = p.parse_args()
    if args.skip >= args.repetitions:
        p.error("--skip leaves no repetition")
    print("| everything resident, tok/s | stock | Sluice | ratio | drift of stock | ratio of user seconds, Sluice / stock |")
    print("| --- | --- | --- | --- | --- | --- |")
    for model in args.models:
        for threads in args.threads:
            samples = {False: [], True: []}
            for r in range(args.rounds):
                for streaming in ((False, True) if r % 2 == 0 else (True, False)):
                    samples[streaming].append(run(args, model, threads, streaming))
            users = [statistics.median(s[2] for s in samples[arm]) for arm in (False, True)]
            for phase, name in ((1, f"decode {args.gen}"), (0, f"prefill {args.prompt}")):
                stock, ours = ([v for s in samples[arm] for v in s[phase]] for arm in (False, True))
                (ta, ma), (tb, mb) = summary(stock), summary(ours)
                half = len(stock) // 2
                drift = statistics.median(stock[half:]) / statistics.median(stock[:half]) - 1 if half else 0
                print(f"| {os.path.basename(model)}, {name}, {threads} thread(s) | {ta} | {tb} | {mb / ma:.3f} | "
                      f"{drift:+.1%} | {users[1] / users[0]:.3f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
