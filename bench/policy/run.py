#!/usr/bin/env python3
"""Owns: the question what the default policy is worth in a running model, against the nearest peer's rule.

Arms: --cache-policy reuse and lru, with the same slots. They run in turns (A/B/B/A) for each budget;
medians with spread, and the drift of lru. Bytes are those that decode read, by the run record; every run decodes the same
tokens, so an arm's bytes differ between rounds only by what its clock decided. Writes Markdown to standard output.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from common import MIB, drop_from_page_cache, summary  # noqa: E402

ARMS = ("lru", "reuse")


def one(args, policy, megabytes):
    """tok/s and MiB per token of decode."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_") and k not in ("GGML_BACKEND_PATH", "LD_PRELOAD")}
    with tempfile.TemporaryDirectory() as work:
        record = os.path.join(work, "record.jsonl")
        command = [args.sluice, "run", "-m", args.model, "-p", args.prompt, "-n", str(args.tokens), "-t", str(args.threads),
                   "--temp", "0", "--ignore-eos", "--no-history", "--record", record,
                   "--cache-policy", policy, "--cache-mb", f"{megabytes:.3f}"]
        drop_from_page_cache(args.model)
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=1800)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        with open(record, encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
    rows = [x for x in lines if x["kind"] == "row" and x["phase"] == 1]
    tokens = sum(r["tokens"] for r in rows)
    if tokens == 0:
        raise SystemExit("the record has no decode")
    seconds = sum(r["wall_ns"] for r in rows) / 1e9
    return tokens / seconds, sum(r["exact_bytes"] or 0 for r in rows) / tokens / MIB, done.stdout


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default=os.path.join(ROOT, "build", "sluice"))
    p.add_argument("--model", required=True)
    p.add_argument("--cache-mb", type=float, nargs="+", required=True, help="budgets for experts, in MiB")
    p.add_argument("--prompt", default="In the beginning")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=4)
    args = p.parse_args()
    print("| cache, MiB | lru, tok/s | reuse, tok/s | ratio | lru, MiB per token | reuse | ratio | drift of lru |\n"
          "| --- | --- | --- | --- | --- | --- | --- | --- |")
    for arm in ARMS:  # memory that nobody has touched for a while can be slow: two runs that do not count
        one(args, arm, max(args.cache_mb))
    for megabytes in args.cache_mb:
        speed, read, texts = {a: [] for a in ARMS}, {a: [] for a in ARMS}, set()
        for r in range(args.rounds):
            for arm in ARMS if r % 2 == 0 else ARMS[::-1]:
                tokens, mib, text = one(args, arm, megabytes)
                speed[arm].append(tokens)
                read[arm].append(mib)
                texts.add(text)
        if len(texts) != 1:
            raise SystemExit(f"with {megabytes} MiB not all runs wrote the same text")
        (ls, lm), (rs, rm) = summary(speed["lru"]), summary(speed["reuse"])
        lb, rb = statistics.median(read["lru"]), statistics.median(read["reuse"])
        half = args.rounds // 2
        drift = statistics.median(speed["lru"][half:]) / statistics.median(speed["lru"][:half]) - 1 if half else 0
        print(f"| {megabytes:g} | {ls} | {rs} | {rm / lm:.3f} | {lb:.2f} | {rb:.2f} | {rb / lb if lb else 1:.3f} "
              f"| {drift:+.1%} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
