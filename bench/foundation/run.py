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
import json
import os
import statistics
import subprocess
import sys

MIB = 1 << 20


def bench(args, threads, n_prompt, n_gen, streaming_mb=None, limit=None, repetitions=1):
    """tok/s of one llama-bench process, one value per repetition."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_") and k != "GGML_BACKEND_PATH"}
    if streaming_mb is not None:
        env.update(GGML_BACKEND_PATH=args.plugin, SLUICE_CACHE_MB=str(streaming_mb), SLUICE_LOG="warn")
    command = [args.llama_bench, "-m", args.model, "-t", str(threads), "-p", str(n_prompt), "-n", str(n_gen),
               "-r", str(repetitions), "-o", "json"]
    with Cgroup(limit) as group:
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              preexec_fn=group.enter)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return [s for test in json.loads(done.stdout) for s in test["samples_ts"]]


class Cgroup:
    """A memory cgroup (version 1 or 2) around a child, or nothing where limit is None."""

    def __init__(self, limit):
        self.limit, self.path = limit, None

    def __enter__(self):
        if self.limit is None:
            return self
        v1 = "/sys/fs/cgroup/memory"
        self.path = (v1 if os.path.isdir(v1) else "/sys/fs/cgroup") + f"/sluice-bench-{os.getpid()}"
        os.mkdir(self.path)
        name = "memory.limit_in_bytes" if os.path.isdir(v1) else "memory.max"
        with open(f"{self.path}/{name}", "w") as f:
            f.write(str(self.limit))
        return self

    def enter(self):
        if self.path:
            with open(f"{self.path}/cgroup.procs", "w") as f:
                f.write(str(os.getpid()))

    def __exit__(self, *_):
        if self.path:
            os.rmdir(self.path)


def summary(values):
    m = statistics.median(values)
    return f"{m:.2f} ({min(values):.2f}–{max(values):.2f})", m


def compare(name, stock, ours, rounds):
    """Interleaved A/B/B/A; returns a table row."""
    a, b = [], []
    for r in range(rounds):
        for arm in ("ab" if r % 2 == 0 else "ba"):
            (a if arm == "a" else b).extend(stock() if arm == "a" else ours())
    (ta, ma), (tb, mb) = summary(a), summary(b)
    half = len(a) // 2
    drift = statistics.median(a[half:]) / statistics.median(a[:half]) - 1 if half else 0
    print(f"| {name} | {ta} | {tb} | {mb / ma:.3f} | {drift:+.1%} |", flush=True)


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
            fd = os.open(model, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
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
