#!/usr/bin/env python3
"""Owns: the speed of the foundation against stock llama.cpp, as ratios within one run.

Questions, one table each:
  resident   everything in our cache: decode and prefill of llama-bench with the plug-in against without
  half       a memory cgroup of half the model's size: decode with streaming against stock mmap
  load       load time of models that differ only in the number of experts

Arms are interleaved A/B/B/A; medians and spread are printed, with the drift of the control (stock) over the run. Run it
on an idle machine, as root for the cgroup. Writes Markdown to standard output.
"""
import argparse
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import MIB, compare, drop_from_page_cache, llama_bench, summary  # noqa: E402


def bench(args, threads, n_prompt, n_gen, streaming_mb=None, limit=None, repetitions=1):
    env = {}
    if streaming_mb is not None:
        env = {"GGML_BACKEND_PATH": args.plugin, "SLUICE_CACHE_MB": str(streaming_mb), "SLUICE_LOG": "warn"}
    return llama_bench(args.llama_bench, args.model, threads, n_prompt, n_gen, repetitions, env, limit)


def resident(args):
    print("\n| resident, tok/s | stock | Sluice | ratio | drift of stock |\n| --- | --- | --- | --- | --- |")
    full = os.path.getsize(args.model) * 11 // 10 // MIB
    for threads in (1, 2):
        for name, p, n in (("decode 64", 0, 64), ("prefill 512", 512, 0)):
            compare(f"{name}, {threads} thread(s)",
                    lambda: bench(args, threads, p, n, repetitions=3),
                    lambda: bench(args, threads, p, n, streaming_mb=full, repetitions=3), args.rounds)


def half(args):
    size = os.path.getsize(args.model)
    limit = size // 2
    print(f"\nMemory cgroup of {limit // MIB} MiB for a model of {size // MIB} MiB.")
    print("\n| half of the model, tok/s | stock mmap | Sluice | ratio | drift of stock |\n| --- | --- | --- | --- | --- |")
    for threads in (1, 2):
        compare(f"decode 16, {threads} thread(s), cache {args.half_cache_mb} MiB",
                lambda: bench(args, threads, 0, 16, limit=limit),
                lambda: bench(args, threads, 0, 16, streaming_mb=args.half_cache_mb, limit=limit), args.rounds)


def load(args):
    print("\n| model | size, MiB | load time, s |\n| --- | --- | --- |")
    for model in [args.model] + args.more_models:
        times = []
        for _ in range(3):
            drop_from_page_cache(model)
            done = subprocess.run([args.sluice, "run", "-m", model, "-p", "a", "-n", "1", "-c", "64", "--cache-mb",
                                   str(args.half_cache_mb)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  stdin=subprocess.DEVNULL, text=True, check=True)
            times.append(float(done.stderr.split("loaded in ")[1].split(" s")[0]))
        print(f"| {os.path.basename(model)} | {os.path.getsize(model) // MIB} | {summary(times)[0]} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama-bench", required=True)
    p.add_argument("--plugin", required=True)
    p.add_argument("--sluice", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--more-models", nargs="*", default=[])
    p.add_argument("--half-cache-mb", type=int, default=500)
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--only", choices=["resident", "half", "load"])
    args = p.parse_args()
    for name, question in (("resident", resident), ("half", half), ("load", load)):
        if args.only in (None, name):
            question(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
