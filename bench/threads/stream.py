#!/usr/bin/env python3
"""Owns: how many threads a decode that streams should have, alone and beside other processes.

llama-bench with the plug-in and a cache that does not hold the model, at each number of threads in turns, forwards and
backwards. With --busy N it does so again beside N processes that compute all the while. Median (smallest-largest) of all
repetitions but each process's first, in which the cache fills. Writes Markdown to standard output.
"""
import argparse
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import MIB, llama_bench, summary  # noqa: E402


def table(args, busy):
    env = {"GGML_BACKEND_PATH": args.plugin, "SLUICE_LOG": "warn",
           "SLUICE_CACHE_MB": str(args.cache_mb or os.path.getsize(args.model) * 3 // 10 // MIB)}
    samples = {t: [] for t in args.threads}
    for r in range(args.rounds):
        for t in args.threads if r % 2 == 0 else reversed(args.threads):
            samples[t] += llama_bench(args.llama_bench, args.model, t, 0, args.gen, 3, env)[1:]
    first = statistics.median(samples[args.threads[0]])
    for t in args.threads:
        text, middle = summary(samples[t])
        print(f"| {busy} | {t} | {text} | {middle / first:.2f} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama-bench", required=True)
    p.add_argument("--plugin", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--cache-mb", type=int, help="default: 30 %% of the model")
    p.add_argument("--threads", type=int, nargs="*", default=[1, 2, 4])
    p.add_argument("--busy", type=int, nargs="*", default=[0, 1], help="processes that compute beside it")
    p.add_argument("--gen", type=int, default=16)
    p.add_argument("--rounds", type=int, default=4)
    args = p.parse_args()
    print(f"| busy processes | threads | decode {args.gen}, tok/s | to {args.threads[0]} thread(s) |\n| --- | --- | --- | --- |")
    for busy in args.busy:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            table(args, busy)
        finally:
            for o in others:
                o.kill()
                o.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
