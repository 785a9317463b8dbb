#!/usr/bin/env python3
"""Owns: instructions per operation of the pieces in pieces.cpp, and their comparison with baseline.json.

Counted under callgrind, and only what lies in the program's own file: our code and the C++ library, which is linked
into it. libc is outside, because it chooses functions by the processor; what goes there is seen by the number of
allocations instead, and in the column "with libc", which is for people and compared with nothing. Such counts repeat
exactly for the same compiler, architecture and flags, so the tolerance is for changes that nobody would call slower.
With another build there is nothing to compare with, and this says so. Times are never looked at.

Exit codes: 0 as the baseline or not compared, 1 different or failed, 2 wrong command line.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MEASURED = "sluice_micro_measured"
REFERENCE = "cache.hit"
TOLERANCE_PERCENT = 2.0
UPDATE = "make bench-count-update"


def read_dump(text, program):
    """Instructions in `program`, and in all files, of one callgrind file."""
    names, own, everything, summary = {}, 0, 0, 0
    inside = inclusive = False
    for line in text.splitlines():
        if spec := re.match(r"ob=\((\d+)\)(?: (.*))?$", line):
            number, name = spec.groups()
            inside = (names.setdefault(number, name) if name else names[number]) == program
        elif spec := re.match(r"cob=\((\d+)\) (.*)$", line):
            names[spec.group(1)] = spec.group(2)  # a name may first be seen as that of a callee
        elif line.startswith("calls="):
            inclusive = True  # the next line is the cost of the callee
        elif spec := re.match(r"[+*\d-]\S* (\d+)$", line):
            if not inclusive:
                everything += int(spec.group(1))
                own += int(spec.group(1)) if inside else 0
            inclusive = False
        elif line.startswith("summary:"):
            summary = int(line.split()[1])
    if everything != summary:
        raise SystemExit(f"callgrind's file is not understood: it says {summary} instructions, its lines {everything}")
    return own, everything


def measure(program, valgrind):
    """The build, and each piece with its counts per operation."""
    program = os.path.realpath(program)
    with tempfile.TemporaryDirectory() as folder:
        command = [valgrind, "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--dump-line=no",
                   f"--toggle-collect={MEASURED}", f"--dump-after={MEASURED}", program]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        (_, *build), *rows = (line.split("\t") for line in done.stdout.splitlines())
        pieces = {}
        for number, (_, name, operation, operations, allocations) in enumerate(rows, start=1):
            with open(f"{folder}/out.{number}") as f:
                own, everything = read_dump(f.read(), program)
            if own == 0:
                raise SystemExit(f"{name}: callgrind saw no instruction of {program}")
            n = int(operations)
            pieces[name] = {"operation": operation, "instructions": round(own / n, 2),
                            "allocations": round(int(allocations) / n, 3), "with_libc": round(everything / n, 2)}
    # Flags are words; how many spaces lie between them is nobody's business.
    return {"build": {k: " ".join(v.split()) for k, v in zip(("compiler", "architecture", "flags"), build)},
            "pieces": pieces}


def baseline_of(measured):
    """What is kept of a measurement. Ratios to one piece are what can be read across machines."""
    pieces = measured["pieces"]
    reference = pieces[REFERENCE]["instructions"]
    return {"build": measured["build"], "tolerance_percent": TOLERANCE_PERCENT, "reference": REFERENCE,
            "pieces": {name: {"operation": p["operation"], "instructions": p["instructions"],
                              "allocations": p["allocations"], "ratio": round(p["instructions"] / reference, 2)}
                       for name, p in pieces.items()}}


def differences(old, new):
    """Sentences about what is not as in the baseline. Both are baselines of the same build."""
    found = []
    for name in sorted(old["pieces"].keys() - new["pieces"].keys()):
        found.append(f"{name}: in the baseline, but no longer measured")
    for name, piece in new["pieces"].items():
        was = old["pieces"].get(name)
        if was is None:
            found.append(f"{name}: not in the baseline")
            continue
        for what in ("instructions", "allocations"):
            a, b = was[what], piece[what]
            if abs(b - a) <= a * old["tolerance_percent"] / 100:
                continue
            change = f"{(b / a - 1) * 100:+.1f}%" if a else "there were none"
            verdict = "more" if b > a else "fewer"
            found.append(f"{name}: {a:.12g} -> {b:.12g} {what} for one {was['operation']}: {verdict} ({change})")
    return found


def print_table(measured, new, old):
    print("| piece | instructions | baseline | change | ratio | allocations | with libc | one operation |\n"
          "| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, p in new["pieces"].items():
        was = old["pieces"][name]["instructions"] if old and name in old["pieces"] else None
        before = f"{was:.2f} | {(p['instructions'] / was - 1) * 100:+.1f}%" if was else "none | "
        print(f"| {name} | {p['instructions']:.2f} | {before} | {p['ratio']:.2f} | {p['allocations']:g} | "
              f"{measured['pieces'][name]['with_libc']:.2f} | {p['operation']} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the program micro_count of a Release build")
    parser.add_argument("--baseline", default=os.path.join(HERE, "baseline.json"))
    parser.add_argument("--update", action="store_true", help="write the baseline anew instead of comparing with it")
    args = parser.parse_args()

    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise SystemExit("valgrind is missing: scripts/setup.sh --test-packages installs it")
    measured = measure(args.program, valgrind)
    new = baseline_of(measured)
    old = None
    if os.path.exists(args.baseline):
        with open(args.baseline) as f:
            old = json.load(f)
    print_table(measured, new, old)
    if args.update:
        with open(args.baseline, "w") as f:
            f.write(json.dumps(new, indent=2) + "\n")
        print(f"\nwritten: {args.baseline}")
        return 0
    if old is None:
        raise SystemExit(f"\nthere is no {args.baseline}: {UPDATE} writes it")
    if old["build"] != new["build"]:
        described = [", ".join(f"{k} {v}" for k, v in build.items()) for build in (old["build"], new["build"])]
        print(f"\nnot compared: the baseline is for {described[0]}; this build is {described[1]}")
        return 0
    found = differences(old, new)
    if found:
        print("\n" + "\n".join(found) + "\n\nNot as the baseline. More is a regression, unless what it buys is worth it; fewer fails"
              f"\ntoo, so that it is kept. {UPDATE} writes the new counts: commit them and say why.")
        return 1
    print(f"\nas the baseline, within {old['tolerance_percent']:g}%")
    return 0


if __name__ == "__main__":
    sys.exit(main())
