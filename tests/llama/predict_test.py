#!/usr/bin/env python3
"""--predict-log, --route-features and --predict-model: a run with them says the same and reads the same as one without."""
import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile


def run(arguments, record, extra, environment=None):
    command = [arguments.sluice, "run", "-m", arguments.model, "-p", "And it came to pass", "-n", "24", "--cache-mb", "2", "--temp", "0", "-t", "1",
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
    assert struct.unpack_from("<I", held, 32 + 16 * sets) == (0,), "nothing lossy was on"
    body = held[32 + 16 * sets + 8:]
    decoded = sum(1 for r in rows if r["phase"] == 1)
    assert decoded > 3 and len(body) == decoded * row, (len(body), decoded, row)
    for token in range(1, decoded):
        assert struct.unpack_from("<H", body, token * row) == (1,), token

    # Nothing was computed alone, and that is said.
    _, said, _, _ = run(arguments, record, ["--route-features", path, "-n", "1"])
    assert f"{path} has no tokens" in said, said

    # As much as fits in 1 MiB, and that is said; the prompt goes in token by token.
    text, said, _, _ = run(arguments, record, ["--route-features", path, "--route-features-max", "1", "-ub", "1", "-n", "260",
                                               "--ignore-eos", "-c", "512"])
    assert "has reached" in said and "--route-features-max allows more" in said, said
    size = os.path.getsize(path)
    assert (1 << 20) - row < size <= 1 << 20 and (size - 40 - 16 * sets) % row == 0, size
    return path, 40 + 16 * sets


def train(arguments, *rest, code=0):
    done = subprocess.run([arguments.sluice, "predict", "train", *rest], capture_output=True, text=True, timeout=240)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def trained(arguments, directory, seen, first_row, plain, plain_rows):
    """sluice predict train, and what --predict-model does with it: the same text and reads, one guesser more."""
    gate, again, bad = (os.path.join(directory, name) for name in ("gate", "again", "bad"))
    text, _ = train(arguments, arguments.model, seen, "-o", gate, "--rank", "8", "-t", "1")
    assert re.search(r"^ layer +stale +trained +ctrl +rank +slots$", text, re.M) and re.search(r"^ +all ", text, re.M), text
    summary, _ = train(arguments, arguments.model, seen, "-o", again, "--rank", "8", "-t", "2", "--json")
    with open(gate, "rb") as a, open(again, "rb") as b:
        made = a.read()
        assert made == b.read(), "not the same with two threads"
    summary = json.loads(summary)
    held = summary["held_out"]
    # The report's own rule is this router's, but for the rounding of what was kept.
    assert held["slots"] > 0 and held["control"] >= 0.97 * held["slots"] and held["trained"] > 0, summary
    assert summary["trained_on"] < summary["tokens"] and summary["bytes"] == len(made), summary
    assert summary["layers"][0]["rank"] is None and summary["layers"][0]["slots"] == 0, "nothing is before it"

    record = os.path.join(directory, "t.jsonl")
    text, said, rows, guesses = run(arguments, record, ["--predict-log", "--predict-model", gate])
    assert text == plain, (text, plain)
    for a, b in zip(plain_rows, rows):
        for column in ("phase", "tokens", "lookups", "hits", "exact_bytes"):
            assert a[column] == b[column], (column, a[column], b[column])
    assert f"guesses are corrected by {gate}" in said, said
    assert re.search(r"moe-predict: trained [\d.]+ % of routed slots", said), said
    assert re.search(r"each guess took: stale gate [\d.]+ us, trained [\d.]+ us", said), said
    assert "control 100.0 % of routed slots (100.0 % whole routings)" in said, said
    scores = guesses[0]["predictors"]
    for column in ("routings", "slots", "not_ranked"):
        assert scores["trained"][column] == scores["stale gate"][column], (column, scores["trained"])
    assert scores["trained"]["hits"] > 0
    # Where training found nothing better, the two guess the same.
    for layer, by_stale, by_trained in zip(summary["layers"], scores["stale gate"]["layers"], scores["trained"]["layers"]):
        assert layer["rank"] is not None or by_stale["hits"] == by_trained["hits"], (layer, by_stale, by_trained)

    text, said, _, _ = run(arguments, record, ["--predict-prefetch", "--predict-model", gate])
    assert text == plain and f"guesses are corrected by {gate}" in said, said

    # What a lossy run's routers were given is marked, and training says so; beside a file of a lossless run, too.
    lossy = os.path.join(directory, "lossy")
    run(arguments, record, ["--route-features", lossy, "--n-expert-used", "1", "-ub", "1", "-n", "160", "--ignore-eos", "-c", "512"])
    text, said = train(arguments, arguments.model, lossy, "-o", lossy + ".gate", "--rank", "8", "-t", "1")
    assert f"{lossy} is of a run with --n-expert-used 1" in text + said, (text, said)

    # A plan counts what guesses take, by the same rule, and knows the file.
    def program(*extra):
        done = subprocess.run([arguments.sluice, "plan", arguments.model, "-t", "1", "-c", "512", "--cache-mb", "2", "--json", *extra],
                              capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)
        assert all(word in plan["command"] for word in extra), plan["command"]
        return plan["memory"]["program_bytes"]
    # As floats in memory: scale and shift at least, for each layer that is corrected.
    assert program() <= program("--predict-prefetch") < program("--predict-prefetch", "--predict-model", gate)

    # What is not whole is refused, with what to do.
    for broken in (made[:-1], made[:100] + bytes([made[100] ^ 1]) + made[101:], b""):
        with open(bad, "wb") as file:
            file.write(broken)
        done = subprocess.run([arguments.sluice, "run", "-m", arguments.model, "-p", "And", "-n", "2", "--cache-mb", "2", "--predict-log",
                               "--predict-model", bad], capture_output=True, text=True, timeout=240)
        assert done.returncode == 1 and bad in done.stderr and "sluice predict train" in done.stderr, done.stderr
        done = subprocess.run([arguments.sluice, "plan", arguments.model, "--cache-mb", "2", "--predict-log", "--predict-model", bad],
                              capture_output=True, text=True, timeout=240)
        assert done.returncode == 1 and bad in done.stderr, done.stderr
    with open(seen, "rb") as file:
        held = bytearray(file.read())
    held[first_row + 200] ^= 1
    with open(bad, "wb") as file:
        file.write(held)
    _, said = train(arguments, arguments.model, bad, "-o", again, code=1)
    assert "token 0 was changed" in said and "record it anew" in said, said
    with open(bad, "wb") as file:
        file.write(held[:first_row])
    _, said = train(arguments, arguments.model, bad, "-o", again, code=1)
    assert "0 tokens are too few" in said, said
    with open(bad, "wb") as file:
        file.write(held[:8] + bytes([9]) + held[9:])
    _, said = train(arguments, arguments.model, bad, "-o", again, code=1)
    assert "of version 9, not 2" in said, said
    # Command lines that cannot be meant.
    train(arguments, arguments.model, seen, code=2)
    train(arguments, arguments.model, "-o", again, code=2)
    train(arguments, arguments.model, seen, "-o", again, "--rank", "x", code=2)
    _, said = train(arguments, arguments.model, seen, "-o", seen, code=1)
    assert "it is what is read" in said, said
    link = os.path.join(directory, "link")
    os.link(seen, link)
    _, said = train(arguments, arguments.model, seen, link, "-o", again, code=1)
    assert f"{link} is given twice" in said, said
    begun = os.path.join(directory, "begun")
    with open(seen, "rb") as file, open(begun, "wb") as half:
        half.write(file.read(len(held) // 2))
    for files in ([seen, begun], [begun, seen]):
        _, said = train(arguments, arguments.model, *files, "-o", again, code=1)
        assert "begin with the same tokens" in said, said
    pipe = os.path.join(directory, "pipe")
    os.mkfifo(pipe)
    _, said = train(arguments, arguments.model, pipe, "-o", again, code=1)
    assert f"{pipe} is no file" in said, said
    _, said = train(arguments, arguments.model, seen, "-o", os.path.join(directory, "none", "gate"), code=1)
    assert "there is no directory" in said, said
    with open(again, "rb") as file:
        assert file.read() == made, "replaced though training failed"


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
        seen, first_row = features(arguments, directory, plain, rows)
        trained(arguments, directory, seen, first_row, plain, rows)

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
