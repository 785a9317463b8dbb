#!/usr/bin/env python3
"""Owns: how often the range of `sluice plan` holds what `sluice run` then measures, over models, caches and threads.

For each combination, in each round: plan with the drive's verdict alone (fresh), plan with what earlier runs have left
(with history: in the first round runs with other settings, later the same ones too), then the run. All of it in a cache
directory of its own, into which the verdict is copied. Prompts differ from round to round. Run it on an idle machine,
after `sluice probe MODEL`. Writes Markdown to standard output.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

PROMPTS = ["In the beginning", "The king of the north said to his men that", "And there was a city, and in the city",
           "Of all the things that were told"]


def run(command, env):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def environment(directory):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    env["SLUICE_CACHE_DIR"] = directory
    return env


def new_directory(verdicts):
    directory = tempfile.mkdtemp(prefix="sluice-plan-")
    if os.path.isdir(verdicts):
        shutil.copytree(verdicts, os.path.join(directory, "probe"))
    return directory


def plan(args, options, directory):
    return json.loads(run([args.sluice, "plan", "--json", *options], environment(directory)))


class Case:
    """One way to predict: how often it held, and how wide it was."""

    def __init__(self, name):
        self.name, self.held, self.of, self.widths = name, 0, 0, []

    def add(self, predicted, measured):
        low, high = predicted
        inside = low <= measured <= high
        self.held += inside
        self.of += 1
        self.widths.append(high / low if low > 0 else float("inf"))
        return f"{low:.2f}–{high:.2f}{'' if inside else ' **out**'}"

    def summary(self):
        return (f"- {self.name}: {self.held} of {self.of} held; high over low {statistics.median(self.widths):.2f} "
                f"(at most {max(self.widths):.2f})")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", required=True, help="the program")
    p.add_argument("--model", action="append", required=True, metavar="PATH:MB,MB,...",
                   help="a model and the sizes of cache to try it with; may be repeated")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--verdicts", default=os.path.expanduser("~/.cache/sluice/probe"))
    args = p.parse_args()

    combinations = []
    for model in args.model:
        path, _, sizes = model.rpartition(":")
        for mb in sizes.split(","):
            combinations += [(path, mb, t) for t in args.threads.split(",")]
    fresh = Case("with the verdict and the processor's speed only")
    others = Case("with runs of other settings")
    same = Case("with runs of the same settings")
    kept = new_directory(args.verdicts)
    seen = set()
    print("| round | model | cache, MiB | threads | fresh, tok/s | with history | measured |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    try:
        for r in range(args.rounds):
            order = combinations if r % 2 == 0 else combinations[::-1]
            for path, mb, t in order:
                options = ["-m", path, "--cache-mb", mb, "-t", t, "-n", str(args.tokens), "-c", "1024"]
                alone = new_directory(args.verdicts)
                try:
                    first = plan(args, options, alone)["token"]["tokens_per_second"]
                finally:
                    shutil.rmtree(alone)
                known = plan(args, options, kept)["token"]["tokens_per_second"]
                run([args.sluice, "run", *options, "-p", PROMPTS[r % len(PROMPTS)], "--temp", "0", "--ignore-eos"],
                    environment(kept))
                measured = plan(args, options, kept)["past_runs"][-1]["measured"]
                a = fresh.add(first, measured)
                b = (same if (path, mb, t) in seen else others).add(known, measured)
                seen.add((path, mb, t))
                print(f"| {r + 1} | {os.path.basename(path)} | {mb} | {t} | {a} | {b} | {measured:.2f} |", flush=True)
        print()
        for case in (fresh, others, same):
            if case.of:
                print(case.summary())
        last = plan(args, options, kept)["predictions"]
        print(f"- by the program's own count, of the last model: {last['held']} of {last['of']}")
    finally:
        shutil.rmtree(kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
