#!/usr/bin/env python3
"""--predict-log: a run with it says the same and reads the same as one without, and reports what it guessed."""
import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile


def run(arguments, record, extra, environment=None):
    command = [arguments.sluice, "run", "-m", arguments.model, "-p", "And it came to pass", "-n", "24", "--cache-mb", "2", "--temp", "0",
               "--record", record, *extra]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, **(environment or {})})
    assert done.returncode == 0, done.stderr
    with open(record, encoding="utf-8") as lines:
        everything = [json.loads(line) for line in lines]
    of = lambda kind: [r for r in everything if r.get("kind", "run") == kind]
    return done.stdout, done.stderr, of("row"), of("predict")


def features(arguments, directory, plain, plain_rows):
    """--route-features: the same text and reads; a row for each token of decode, no more than the file may hold."""
    path = os.path.join(directory, "features")
    record = os.path.join(directory, "f.jsonl")
    text, said, rows, _ = run(arguments, record, ["--route-features", path])
    assert text == plain, (text, plain)
    for a, b in zip(plain_rows, rows):
        for column in ("phase", "tokens", "lookups", "hits", "exact_bytes"):
            assert a[column] == b[column], (column, a[column], b[column])
    with open(path, "rb") as file:
        held = file.read()
    assert held.startswith(b"SLUICERF"), held[:32]
    (sets,) = struct.unpack_from("<I", held, 28)
    shapes = [struct.unpack_from("<4I", held, 32 + 16 * s) for s in range(sets)]
    row = sum(2 * (1 + used + numbers) for _, _, used, numbers in shapes) + 4
    body = held[32 + 16 * sets + 4:]
    decoded = sum(1 for r in rows if r["phase"] == 1)
    assert decoded > 3 and len(body) == decoded * row, (len(body), decoded, row)
    for token in range(1, decoded):
        assert struct.unpack_from("<H", body, token * row) == (1,), token

    # As much as fits in 1 MiB, and that is said; the prompt goes in token by token.
    text, said, _, _ = run(arguments, record, ["--route-features", path, "--route-features-max", "1", "-ub", "1", "-n", "320",
                                               "--ignore-eos", "-c", "512"])
    assert "has reached" in said and "--route-features-max allows more" in said, said
    size = os.path.getsize(path)
    assert (1 << 20) - row < size <= 1 << 20 and (size - 36 - 16 * sets) % row == 0, size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--model", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        record = os.path.join(directory, "r.jsonl")
        plain, said, rows, guesses = run(arguments, record, [])
        assert "moe-predict" not in said and not guesses, said
        probed, said, probed_rows, guesses = run(arguments, record, ["--predict-log"])
        quiet, quiet_said, _, _ = run(arguments, record, ["--sluice-log", "error"], {"SLUICE_PREDICT_LOG": "1"})
        features(arguments, directory, plain, rows)

    assert probed == plain and quiet == plain, (plain, probed, quiet)
    assert rows and len(rows) == len(probed_rows)
    for a, b in zip(rows, probed_rows):
        for column in ("phase", "tokens", "lookups", "hits", "exact_bytes", "evictions_capacity"):
            assert a[column] == b[column], (column, a[column], b[column])

    assert "moe-predict" in quiet_said, quiet_said
    assert "control 100.0 % of routed slots (100.0 % whole routings)" in said, said
    assert "should be 100 %" not in said, said
    # Every layer of every token but the first layer's was ranked, or counted.
    scored = re.search(r"scored: stale gate (\d+) routings/(\d+) slots, previous token (\d+) .*, control (\d+) "
                       r".*could not rank (\d+) routings: (\d+) of the first layer, (\d+) of the first token, (\d+) ", said)
    assert scored, said
    routings, slots, before, control, unranked, first_layer, first_token, unknown = map(int, scored.groups())
    assert routings + unranked == control and first_layer + first_token + unknown == unranked, said
    assert unknown == 0 and first_layer > 0 and first_token > 0, said
    table = re.findall(r"^sluice: +(\d+) +(\S+) +(\S+) +(\S+) +(\d+)$", said, re.M)
    assert len(table) > 1 and table[0][0] == "0" and table[0][1] == "-", said
    assert len(guesses) == 1 and guesses[0]["model"] == 0, guesses
    stale, own = guesses[0]["predictors"]["stale gate"], guesses[0]["predictors"]["control"]
    assert stale["routings"] == routings and stale["slots"] == slots and own["routings"] == control
    assert own["overlap"] == 1 and 0 < stale["overlap"] <= 1 and len(stale["layers"]) == len(table)
    assert all(row[1] != "-" for row in table[1:]) and all(row[3] == "100.0" for row in table), said
    return 0


if __name__ == "__main__":
    sys.exit(main())
