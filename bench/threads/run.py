#!/usr/bin/env python3
"""Owns: the choice between ggml's own thread pool and OpenMP: two llama-bench builds that differ in nothing else.

Arms are interleaved; medians and spread, and the drift of the first build. With --busy a second process computes all the
while, as on a machine that is used for other things too. Writes Markdown to standard output.
"""
import argparse
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import compare, llama_bench  # noqa: E402


def table(args, title):
    print(f"\n| {title}, tok/s | own pool | OpenMP | ratio | drift of own pool |\n| --- | --- | --- | --- | --- |")
    for threads in args.threads:
        for name, p, n in (("decode 32", 0, 32), ("prefill 128", 128, 0)):
            compare(f"{name}, {threads} thread(s)",
                    lambda: llama_bench(args.pool, args.model, threads, p, n, 2),
                    lambda: llama_bench(args.openmp, args.model, threads, p, n, 2), args.rounds)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pool", required=True, help="llama-bench built with GGML_OPENMP=OFF")
    p.add_argument("--openmp", required=True, help="llama-bench built with GGML_OPENMP=ON")
    p.add_argument("--model", required=True)
    p.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--busy", action="store_true", help="measure again beside a process that uses one core")
    args = p.parse_args()
    table(args, "idle machine")
    if args.busy:
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            args.rounds = max(2, args.rounds // 2)
            table(args, "beside a process that uses one core")
        finally:
            other.kill()
            other.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
