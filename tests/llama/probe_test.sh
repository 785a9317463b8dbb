#!/usr/bin/env bash
# Owns: the proof that `sluice probe` does as documented: what it prints, writes, refuses and leaves behind.
# Usage: probe_test.sh SLUICE MODEL
set -euo pipefail
sluice=$1 model=$2
work=$(mktemp -d)
memory=$(mktemp -d -p /dev/shm 2>/dev/null || true)
trap 'rm -rf "$work" ${memory:+"$memory"}' EXIT
failures=0
export SLUICE_CACHE_DIR=$work/cache

said() { # OK? NAME
    if [ "$1" = 0 ]; then
        echo "ok      $2"
    else
        echo "FAILED  $2"
        tail -n 20 "$work/out" "$work/err" 2>/dev/null || true
        failures=$((failures + 1))
    fi
}
check() { # NAME COMMAND...: the command succeeds
    local name=$1 rc=0
    shift
    "$@" >"$work/check" 2>&1 </dev/null || rc=$?
    said $rc "$name"
    [ $rc = 0 ] || tail -n 5 "$work/check"
}
probe() { # CODE ARGUMENTS...: ends with CODE; leaves out and err
    local code=$1 rc=0
    shift
    "$sluice" probe "$@" >"$work/out" 2>"$work/err" </dev/null || rc=$?
    [ $rc = "$code" ] || { echo "code $rc, wanted $code"; return 1; }
}
refused() { # NAME CODE WORDS ARGUMENTS...: ends with CODE and WORDS, and measures nothing
    local name=$1 code=$2 words=$3 rc=0
    shift 3
    probe "$code" "$@" && grep -qF -- "$words" "$work/err" && [ ! -s "$work/out" ] || rc=1
    said $rc "$name"
}
verdicts() { find "$work/cache" -type f 2>/dev/null | wc -l; }
json() { # FILE EXPRESSION over v
    python3 -c 'import json, sys; v = json.load(open(sys.argv[1])); assert eval(sys.argv[2]), sys.argv[2]' "$1" "$2"
}

# --- a model
cp "$model" "$work/model.gguf"
rc=0; probe 0 "$work/model.gguf" --seconds 2 || rc=1
said $rc "a model is measured"
cp "$work/out" "$work/table"
for words in "io_uring, direct, idle" "p99 ms" "gate, up" "a whole expert" "while" "through the page cache" "reading on and on" \
    "checksums (CRC-32C)" "at the first touch" "beside them" "4 x 64 KiB, priorities"; do
    check "it tells \"$words\"" grep -qF -- "$words" "$work/table"
done
check "quiet in a pipe: one line" [ "$(wc -l <"$work/err")" = 1 ]
verdict=$(sed -n 's/^verdict: //p' "$work/err")
check "the verdict is where it says" test -f "$verdict"
check "and where it belongs" test "$(dirname "$verdict")" = "$work/cache/probe"
check "it is the only file" test "$(find "$work/cache" | wc -l)" = 3
check "it is whole" json "$verdict" 'v["format"] == "sluice-probe" and len(v["digest"]) == 16 and v["model_digest"] and v["drive"]["file_system"]'
check "its sizes are those of the experts" json "$verdict" '{s["bytes"] for s in v["sizes"] if s["name"]} >= {4096, 18432, 55296}'
check "the model is as it was" cmp "$model" "$work/model.gguf"
rc=0; probe 0 "$work/model.gguf" --seconds 1 || rc=1
said $rc "it is measured again, for less long"
check "the better verdict stays" grep -q "verdict: not kept: $verdict has one of" "$work/err"
check "as it was" json "$verdict" 'v["took_ns"] > 1.5e9 if "took_ns" in v else True'
check "no line is wider than told" test "$(COLUMNS=80 "$sluice" probe "$model" --seconds 1 2>/dev/null | wc -L)" -le 80

# --- as JSON, elsewhere, and of no model
head -c 3000000 /dev/urandom >"$work/plain"
rc=0; probe 0 "$work/plain" --seconds 1 --json --out "$work/elsewhere.json" || rc=1
said $rc "any file is measured"
check "JSON is the verdict" cmp "$work/out" "$work/elsewhere.json"
check "it says that it is no model" json "$work/elsewhere.json" 'v["model_digest"] == "" and any("No model" in n for n in v["notes"])'
check "no read is larger than the file" json "$work/elsewhere.json" 'max(c["size"] for c in v["cells"]) <= 3000000'
check "silent in a pipe with --json" test ! -s "$work/err"

# --- in memory
if [ -n "$memory" ] && [ "$(stat -f -c %T "$memory")" = tmpfs ]; then
    head -c 4M /dev/urandom >"$memory/file"
    rc=0; probe 0 "$memory/file" --seconds 1 --out "$work/memory.json" || rc=1
    said $rc "a file in memory is measured"
    check "and said to be one" grep -q "lies in memory" "$work/out"
    check "all of it is marked" grep -q '^ *1 .*\*' "$work/out"
    check "nothing follows from it" json "$work/memory.json" 'v["derived"] is None and all(c["source"] == "memory" for c in v["cells"])'
    refused "a directory in memory" 1 "lies in memory" "$memory" --out "$work/x"
fi

# --- interrupted: no verdict
catches() { # PID: waits until the process is the program, no shell any more, and handles SIGINT
    while [ -d "/proc/$1" ] && { [ "$(readlink "/proc/$1/exe")" != "$(readlink -f "$sluice")" ] ||
        [ $((0x$(sed -n 's/^SigCgt:\s*//p' "/proc/$1/status") & 2)) = 0 ]; }; do :; done
}
rm -rf "$work/cache"
for signal in INT TERM; do
    "$sluice" probe "$model" --seconds 600 >"$work/out" 2>"$work/err" </dev/null &
    pid=$!
    catches $pid
    kill -$signal $pid
    rc=0; wait $pid || rc=$?
    said $((rc == 130 ? 0 : 1)) "SIG$signal ends it with 130 (was $rc)"
    check "without a verdict" test "$(verdicts)" = 0 -a ! -s "$work/out"
done

# --- a directory: what is written has no name, so nothing is left however it ends
mkdir "$work/folder"
for signal in KILL INT; do
    "$sluice" probe "$work/folder" --seconds 600 >"$work/out" 2>"$work/err" </dev/null &
    pid=$!
    while [ -d "/proc/$pid" ] && ! ls -l "/proc/$pid/fd" 2>/dev/null | grep -q "$work/folder/.*deleted"; do :; done
    check "a directory while it is written to is empty" test -z "$(ls -A "$work/folder")"
    kill -$signal $pid
    rc=0; wait $pid 2>/dev/null || rc=$?
    wanted=130
    [ $signal = INT ] || wanted=137
    said $((rc == wanted ? 0 : 1)) "SIG$signal ends it with $wanted (was $rc)"
    check "and after SIG$signal too" test -z "$(ls -A "$work/folder")"
    check "no verdict either" test "$(verdicts)" = 0
done

# --- what cannot be
refused "nothing named" 2 "what is to be measured"
refused "two things" 2 "do not understand" "$model" "$model"
refused "an unknown option" 2 "--frobnicate" "$model" --frobnicate
for n in 0 -5 x 3601 1.5 ""; do refused "seconds: \"$n\"" 2 "from 1 to 3600" "$model" --seconds "$n"; done
refused "two lengths" 2 "goes without --seconds" "$model" --full --seconds 3
refused "a file that is not there" 1 "No such file" "$work/none"
refused "a model that is none" 1 "plain" --model "$work/plain"
head -c 100000 /dev/urandom >"$work/small"
refused "too small a file" 1 "too little to measure a drive by" "$work/small"
: >"$work/empty"
refused "an empty file" 1 "too little to measure a drive by" "$work/empty"
refused "no plain file" 1 "not a regular file" /dev/zero
refused "the model as the place to write to" 1 "is what is to be measured" "$work/model.gguf" --out "$work/./model.gguf"
check "the model is as it was" cmp "$model" "$work/model.gguf"
ln -s model.gguf "$work/link"
refused "a link to the model" 1 "is what is to be measured" "$work/model.gguf" --out "$work/link"
check "the model is as it was" cmp "$model" "$work/model.gguf"
mkfifo "$work/pipe"
refused "a verdict in a pipe" 1 "no plain file" "$model" --out "$work/pipe"
check "the pipe is there" test -p "$work/pipe"
refused "a verdict in no folder" 1 "--out FILE names another place" "$model" --out "$work/none/verdict.json"
refused "a verdict on a device" 1 "no plain file" "$model" --out /dev/full
SLUICE_CACHE_DIR=$work/plain refused "a cache directory that is a file" 1 "cannot create" "$model"

# --- full disks: what was measured is shown, and the file that was there stays
echo old >"$work/verdict.json"
rc=0
(trap '' XFSZ; ulimit -f 8; exec "$sluice" probe "$model" --seconds 1 --out "$work/verdict.json") 2>"$work/err" </dev/null | cat >"$work/out" || rc=$?
said $((rc == 1 ? 0 : 1)) "a disk that fills up is an error (was $rc)"
check "it is said" grep -q "verdict was not kept" "$work/err"
check "the table is shown all the same" grep -q "io_uring, direct, idle" "$work/out"
check "the old file is there" grep -qx old "$work/verdict.json"
check "and no other" test ! -e "$work/verdict.json.tmp"
rc=0; "$sluice" probe "$model" --seconds 1 >/dev/full 2>"$work/err" </dev/null || rc=$?
said $((rc == 1 ? 0 : 1)) "standard output is full"
check "it is said" grep -q "closed or full" "$work/err"

check "help" grep -qF "usage: sluice probe [-m] MODEL" <("$sluice" probe --help)
echo "$failures failures"
[ "$failures" -eq 0 ]
