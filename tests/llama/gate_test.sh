#!/usr/bin/env bash
# Owns: the promises of `sluice gate` as a program: answers, files, exit codes.
# Usage: gate_test.sh SLUICE MODEL
set -euo pipefail
sluice=$1 model=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
export SLUICE_CACHE_DIR=$work/cache

check() { # NAME COMMAND...: the command succeeds
    local name=$1
    shift
    if "$@" >"$work/out" 2>"$work/err"; then
        echo "ok      $name"
    else
        echo "FAILED  $name"
        tail -n 20 "$work/out" "$work/err"
        failures=$((failures + 1))
    fi
}
fails_saying() { # NAME CODE WORDS COMMAND...
    local name=$1 code=$2 words=$3 rc=0
    shift 3
    "$@" >"$work/out" 2>&1 </dev/null || rc=$?
    if [ "$rc" = "$code" ] && grep -qF -- "$words" "$work/out"; then
        echo "ok      $name"
    else
        echo "FAILED  $name: code $rc, wanted $code and \"$words\""
        tail -n 10 "$work/out"
        failures=$((failures + 1))
    fi
}

check "help lists the gates" grep -qF "  c  does streaming compute" <("$sluice" gate --help)
check "help of a gate" grep -qF "usage: sluice gate c MODEL" <("$sluice" gate c --help)
fails_saying "no gate" 2 "which gate" "$sluice" gate
fails_saying "no such gate" 2 "there is no gate z" "$sluice" gate z "$model"
fails_saying "no model" 2 "which model" "$sluice" gate c
fails_saying "a flag that is none" 2 'do not understand "--quickly"' "$sluice" gate c --quickly "$model"
fails_saying "a number that is none" 2 "--decode: a number from" "$sluice" gate c --decode many "$model"
fails_saying "no value" 2 "--out needs a value" "$sluice" gate c "$model" --out
fails_saying "a model that is not there" 1 "$work/none.gguf" "$sluice" gate c "$work/none.gguf"
check "a failed gate leaves nothing" test ! -e "$work/cache"

routes=$(dirname "$0")/../replay/routes
fails_saying "no trace" 2 "which trace" "$sluice" gate b
fails_saying "a chance that is none" 2 "--accept: a chance from 0" "$sluice" gate b --accept 1 "$routes/qwen.csv"
fails_saying "what is no trace" 1 "should name the columns" "$sluice" gate b "$routes/README.md"
check "gate b, two traces" "$sluice" gate b "$routes"/{qwen,gemma}.csv --slots 4 --out "$work/b.json"
cp "$work/out" "$work/text"
check "gate b says yes" test "$(tail -n 1 "$work/text")" = "verdict: yes"
check "gate b tells what a block needs" grep -qF "trace 2: block of 5: breaks even at" "$work/text"
fails_saying "gate b says no where no draft is right" 1 "verdict: no" "$sluice" gate b "$routes/qwen.csv" --accept 0 --out "$work/b.json"
check "and keeps it" grep -qF '"verdict": "no"' "$work/b.json"
mkfifo "$work/pipe"
ln -s pipe "$work/to-pipe"
ln -s later.json "$work/to-later"
for name in pipe to-pipe; do
    fails_saying "a verdict in a $name" 1 "is a pipe, no plain file" "$sluice" gate b "$routes/qwen.csv" --slots 4 --out "$work/$name"
done
check "the pipe is there" test -p "$work/pipe"
check "a verdict where a link leads" "$sluice" gate b "$routes/qwen.csv" --slots 4 --out "$work/to-later"
check "the link is there" test -L "$work/to-later"
check "and so is the verdict" grep -qF '"gate": "b"' "$work/later.json"
printf '# model=x arch=y n_expert=2147483648\nturn,phase,step,layer,slot,expert\n0,1,0,0,0,1\n0,1,0,1,0,1\n' >"$work/crafted.csv"
fails_saying "a trace of too many experts" 1 "line 1 gives the model a number of experts" "$sluice" gate b "$work/crafted.csv"

check "gate c says yes" "$sluice" gate c "$model" --quick --prompt 9 --decode 3
cp "$work/out" "$work/text"
cp "$work/err" "$work/said"
check "the text ends with the answer" test "$(tail -n 1 "$work/text")" = "verdict: yes"
verdict=$(echo "$work"/cache/gates/c-*.json)
check "the verdict is kept" test -s "$verdict"
check "it says where" grep -qF "verdict: $verdict" "$work/said"
check "it is what docs/gates.md says" python3 - "$verdict" "$model" <<'PY'
import json, os, sys
v = json.load(open(sys.argv[1]))
assert v["format"] == "sluice-gate" and v["version"] == 1 and v["gate"] == "c" and v["verdict"] == "yes", v
assert v["inputs"][0]["bytes"] == os.path.getsize(sys.argv[2]) and len(v["inputs"][0]["digest"]) == 16
assert v["settings"]["prompt"] == "9" and v["settings"]["decode"] == "3"
checks = {c["name"]: c for c in v["checks"]}
assert all(c["outcome"] == "yes" for c in checks.values()), checks
for name in ("every way of streaming", "every order of arrival", "reads that fail once", "a read that is late", "the next try"):
    assert name in checks, (name, list(checks))
assert any("no checksums" in n for n in v["notes"]), v["notes"]
# What was waited for without overlap, and with each width and way of reading a prompt.
figures = {f["name"]: f for f in v["figures"]}
for way in ("no overlap", "waves of 1", "waves of all", "a prompt of what routers choose", "a prompt of whole layers ahead"):
    for phase, unit in (("exposed wait of the prompt", "ms"), ("exposed wait", "ms per token")):
        f = figures[f"cache of a third, {way}: {phase}"]
        assert f["unit"] == unit and f["value"] >= 0, f
assert "cache of a third, waves of 1: exposed wait of the prompt, of that without overlap" in figures, list(figures)
assert v["made"].endswith("Z") and v["sluice"] and v["kernel"] and len(v["digest"]) == 16
PY
cp "$model" "$work/copy.gguf"
check "checksums for a copy" "$sluice" verify --write "$work/copy.gguf"
check "with them wrong bytes are tried, too" "$sluice" gate c "$work/copy.gguf" --quick --prompt 5 --decode 2 --faults 6 --json --out "$work/sums.json"
check "and noticed" python3 - "$work/sums.json" <<'PY'
import json, sys
v = json.load(open(sys.argv[1]))
assert v["verdict"] == "yes" and not any("no checksums" in n for n in v["notes"]), v
PY
fails_saying "a verdict in no directory, before the model is looked at" 1 "there is no directory" "$sluice" gate c "$work/no-model" --out "$work/none/v.json"
ln -s /dev/null "$work/no-cache"
fails_saying "nor where none can be made" 1 "cannot create" env SLUICE_CACHE_DIR="$work/no-cache" "$sluice" gate c "$work/no-model"
fails_saying "the model is no place for a verdict" 1 "it is what is measured" "$sluice" gate c "$work/copy.gguf" --quick --prompt 5 --decode 1 --out "$work/copy.gguf"
check "it is whole" cmp "$model" "$work/copy.gguf"
check "--out and --json" "$sluice" gate c -m "$model" --quick --prompt 5 --decode 1 --out "$work/v.json" --json
cp "$work/out" "$work/printed"
check "what is printed is what is kept" cmp "$work/printed" "$work/v.json"

fails_saying "gate d without a model" 2 "which model" "$sluice" gate d
fails_saying "a flag that gate d has not" 2 'do not understand "--faults"' "$sluice" gate d "$model" --faults 3
fails_saying "gate d corrected by nothing" 2 "--predict-model needs a file" "$sluice" gate d "$model" --predict-model
fails_saying "gate d corrected by what is not there" 1 "$work/none.gate" "$sluice" gate d "$model" --predict-model "$work/none.gate"
# Whether guessing could pay depends on the machine; what is measured does not.
"$sluice" gate d "$model" --prompt 9 --decode 12 --act --out "$work/d.json" >"$work/text" 2>&1 || true
check "gate d is what docs/gates.md says" python3 - "$work/d.json" <<'PY'
import json, sys
v = json.load(open(sys.argv[1]))
assert v["gate"] == "d" and v["settings"]["decode"] == "12", v
checks = {c["name"]: c for c in v["checks"]}
shares = [f"cache of {n} % of the experts" for n in (25, 50, 75)]
assert [c for c in checks if not c.endswith("acted on")] == ["control", "the drive"] + shares, list(checks)
for share in shares:
    # Acted on where guesses could pay, and nowhere else.
    assert (checks[share]["outcome"] == "yes") == (f"{share}, acted on" in checks), checks
    assert checks[share]["outcome"] == "unknown" or "(--pre" in checks[share]["found"], checks
assert checks["control"]["outcome"] == "yes", checks
assert checks["the drive"]["outcome"] == "unknown" and "sluice probe" in checks["the drive"]["found"], checks
assert v["verdict"] != "yes", v
figures = {f["name"]: f["value"] for f in v["figures"]}
for n in (25, 50, 75):
    for p in ("stale gate", "stale gate, 2 layers ahead", "stale gate, 4 layers ahead", "previous token", "popularity"):
        named = figures[f"cache of {n} % of the experts: {p}: routed slots named"]
        assert 0 < named <= 100, (n, p, named)
        assert figures[f"cache of {n} % of the experts: {p}: guessing"] >= 0
PY

echo "$failures failures"
[ "$failures" -eq 0 ]
