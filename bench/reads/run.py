#!/usr/bin/env python3
"""Owns: how fast the reads of a decode are, as ratios within one run.

Questions, one table each:
  fio        reads of the sizes and depth of a decode, through Sluice's scheduler, against fio on the same file
  verify     checksums of every read against none
  engines    io_uring against pread, and with registered memory, without a cache and with half of the experts cached
  stores     the GGUF against a pack of it, without a cache and with half of the experts cached (--pack)
  speculate  exact reads beside saturating speculation against exact reads alone: the latency of a layer

Arms are interleaved, forwards and backwards in turn; medians with spread, and ratios round by round, are printed. Run
it on an idle machine. Writes Markdown to standard output.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

MIB = 1 << 20


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def reads(args, *options, model=None):
    out = run([args.decode_reads, model or args.model, f"--seconds={args.seconds}", *options])
    return json.loads(out)


def fio(args, size, depth):
    # Whole blocks in random order, none twice, past the page cache; the file is only read.
    out = run(["fio", "--name=reads", f"--filename={args.model}", "--readonly", "--rw=randread", f"--bs={size}",
               f"--iodepth={depth}", "--direct=1", "--ioengine=io_uring", "--time_based=1",
               f"--runtime={args.seconds}", "--norandommap=0", "--output-format=json"])
    return {"gb_per_s": json.loads(out)["jobs"][0]["read"]["bw_bytes"] * 1e-9}


def rounds(args, arms):
    """Every arm once per round; the second round goes backwards. Returns {arm: [results]}."""
    results = {name: [] for name in arms}
    for r in range(args.rounds):
        for name in list(arms) if r % 2 == 0 else reversed(list(arms)):
            results[name].append(arms[name]())
    return results


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def table(args, title, arms, figure="gb_per_s", extra=()):
    results = rounds(args, arms)
    first = next(iter(arms))
    head = [title, figure, f"ratio to {first}"] + list(extra)
    print("\n| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for name, got in results.items():
        ratios = [g[figure] / f[figure] for g, f in zip(got, results[first])]
        cells = [name, spread([g[figure] for g in got]), spread(ratios)]
        cells += [spread([g[e] for g in got], 3) if e in got[0] else "" for e in extra]
        print("| " + " | ".join(cells) + " |", flush=True)


def question_fio(args):
    size = args.size
    arms = {"fio": lambda: fio(args, size, args.lanes),
            "Sluice": lambda: reads(args, "--uniform", f"--lanes={args.lanes}")}
    table(args, f"{size} B, {args.lanes} at once", arms, extra=["layer_p99_ms", "own_us_per_read", "cpu_s_per_gb"])


def question_verify(args):
    arms = {f"{v}": lambda v=v: reads(args, "--uniform", f"--lanes={args.lanes}", f"--verify={v}")
            for v in ("never", "always", "once")}
    table(args, "verify", arms, extra=["verify_share", "wait_share", "cpu_s_per_gb"])


def question_engines(args):
    for cache in (0, args.half_cache_mb):
        common = [f"--cache-mb={cache}", f"--lanes={args.lanes}"]
        arms = {"io_uring": lambda: reads(args, *common, "--engine=io_uring"),
                "io_uring, registered": lambda: reads(args, *common, "--engine=io_uring", "--registered"),
                "pread": lambda: reads(args, *common, "--engine=pread")}
        table(args, f"cache {cache} MiB", arms, extra=["layer_p99_ms", "own_us_per_read", "cpu_s_per_gb", "hit_share"])


def question_stores(args):
    if not args.pack:
        sys.exit("stores: --pack is missing")
    for cache in (0, args.half_cache_mb):
        common = [f"--cache-mb={cache}", f"--lanes={args.lanes}"]
        arms = {"GGUF": lambda: reads(args, *common, "--store=gguf"),
                "pack": lambda: reads(args, *common, f"--store={args.pack}")}
        table(args, f"cache {cache} MiB", arms, extra=["layer_p99_ms", "own_us_per_read", "cpu_s_per_gb", "hit_share"])


def question_speculate(args):
    for pages in ([], ["--pages"]):
        common = ["--half", "--uniform", f"--lanes={args.lanes}", *pages]
        model = [f"--bytes-per-ns={args.bytes_per_ns}", f"--chunk={args.chunk}", f"--window={args.window}"]
        arms = {"alone": lambda: reads(args, *common),
                "speculating": lambda: reads(args, *common, *model),
                "with priorities": lambda: reads(args, *common, *model, "--priorities")}
        for figure in ("layer_p50_ms", "layer_p99_ms"):
            table(args, "pages of 4 KiB" if pages else "experts", arms, figure, extra=["predicted_bytes"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--decode-reads", required=True, help="the program decode_reads of the build")
    p.add_argument("--model", required=True)
    p.add_argument("--pack")
    p.add_argument("--size", type=int, default=589824, help="of a component, for fio; a multiple of 4096")
    p.add_argument("--lanes", type=int, default=8)
    p.add_argument("--half-cache-mb", type=int, default=800)
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--bytes-per-ns", type=float, default=1.0)
    p.add_argument("--chunk", type=int, default=65536)
    p.add_argument("--window", type=int, default=4 * 65536)
    p.add_argument("--only", nargs="*", choices=["fio", "verify", "engines", "stores", "speculate"])
    args = p.parse_args()
    questions = {"fio": question_fio, "verify": question_verify, "engines": question_engines,
                 "stores": question_stores, "speculate": question_speculate}
    for name, question in questions.items():
        if args.only and name not in args.only:
            continue
        if name == "stores" and not args.pack and not args.only:
            continue
        question(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
