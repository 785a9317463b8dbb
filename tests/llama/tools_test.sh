#!/usr/bin/env bash
# Owns: the proof that the stock command line tools work with the plug-in, and the program `sluice` as documented.
# Usage: tools_test.sh LLAMA_BIN PLUGIN SLUICE MODEL TEXT WRONG_VERSION_LIB
set -euo pipefail
llama_bin=$1 plugin=$2 sluice=$3 model=$4 text=$5 wrong_version=$6
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
unset GGML_BACKEND_PATH
export SLUICE_CACHE_DIR=$work/user

check() { # NAME COMMAND...: the command succeeds
    local name=$1
    shift
    if "$@" >"$work/out" 2>&1; then
        echo "ok      $name"
    else
        echo "FAILED  $name"
        tail -n 20 "$work/out"
        failures=$((failures + 1))
    fi
}
fails_saying() { # NAME CODE WORDS COMMAND...: ends with CODE (or, for "any", not 0), says WORDS, and does not crash
    local name=$1 code=$2 words=$3 rc=0
    shift 3
    "$@" >"$work/out" 2>&1 </dev/null || rc=$?
    if { [ "$code" = any ] && [ $rc -ne 0 ] && [ $rc -lt 128 ] || [ "$rc" = "$code" ]; } && grep -qF -- "$words" "$work/out"; then
        echo "ok      $name"
    else
        echo "FAILED  $name: code $rc, wanted $code and \"$words\""
        tail -n 10 "$work/out"
        failures=$((failures + 1))
    fi
}
same() { # NAME FILE FILE
    check "$1" cmp "$2" "$3"
}

cache=3
export SLUICE_CACHE_MB=$cache

# --- the same text and the same perplexity to the digit
run_args=(-m "$model" -p "In the beginning" -n 24 --temp 0 -c 256 -t 2 --no-display-prompt)
env -u SLUICE_CACHE_MB "$llama_bin/llama-completion" "${run_args[@]}" -no-cnv --no-warmup </dev/null >"$work/stock.txt" 2>/dev/null
LD_PRELOAD=$plugin "$llama_bin/llama-completion" "${run_args[@]}" -no-cnv --no-warmup </dev/null >"$work/plugin.txt" 2>"$work/plugin.log"
check "the plug-in says that it streams" grep -q "expert cache" "$work/plugin.log"
same "llama-completion with the plug-in" "$work/stock.txt" "$work/plugin.txt"
"$sluice" run "${run_args[@]}" </dev/null >"$work/run.txt" 2>"$work/run.log"
check "sluice run says what stock says" diff <(tr -d '\n' <"$work/stock.txt" | sed 's/^ *//') <(tr -d '\n' <"$work/run.txt" | sed 's/^ *//')
for words in "tok/s (whole loop)" "decode hit rate" "read per token" "resident" "lossy:    none"; do
    check "the summary tells \"$words\"" grep -qF "$words" "$work/run.log"
done
printf 'In the beginning' | "$sluice" run -m "$model" -n 24 --temp 0 -c 256 -t 2 --no-display-prompt >"$work/stdin.txt" 2>/dev/null
same "the prompt from standard input" "$work/run.txt" "$work/stdin.txt"
printf 'In the beginning' >"$work/prompt"
"$sluice" run -m "$model" -f "$work/prompt" -n 24 --temp 0 -c 256 -t 2 --no-display-prompt </dev/null >"$work/file.txt" 2>/dev/null
same "the prompt from a file" "$work/run.txt" "$work/file.txt"
"$sluice" run -m "$model" -p "In the beginning" -n 12 --temp 0.9 --seed 7 -c 256 </dev/null >"$work/s1.txt" 2>/dev/null
"$sluice" run -m "$model" -p "In the beginning" -n 12 --temp 0.9 --seed 7 -c 256 --cache-mb 20 </dev/null >"$work/s2.txt" 2>/dev/null
same "a sampled text with one seed, at two cache sizes" "$work/s1.txt" "$work/s2.txt"
check "sluice run --chat" "$sluice" run -m "$model" -p "Who was David?" -n 8 --temp 0 -c 256 --chat --chat-template chatml

head -c 6000 "$text" >"$work/text"
ppl_args=(-m "$model" -f "$work/text" -c 128 -b 128 -t 2)
env -u SLUICE_CACHE_MB "$llama_bin/llama-perplexity" "${ppl_args[@]}" >"$work/ppl.stock" 2>&1
LD_PRELOAD=$plugin "$llama_bin/llama-perplexity" "${ppl_args[@]}" >"$work/ppl.plugin" 2>&1
"$sluice" perplexity "${ppl_args[@]}" >"$work/ppl.sluice" 2>&1
for side in stock plugin sluice; do grep -oE '\[[0-9]+\][0-9.]+|Final estimate.*' "$work/ppl.$side" >"$work/ppl.$side.numbers" || true; done
check "sluice has the last word, after all lines of the tool" python3 -c '
import sys
lines = open(sys.argv[1], errors="replace").read().splitlines()
ours = [i for i, line in enumerate(lines) if line.startswith("sluice: ") and "look-ups hit the cache" in line]
final = [i for i, line in enumerate(lines) if "Final estimate" in line]
assert len(final) == 1 and ours and final[0] < ours[0], lines[-8:]
' "$work/ppl.sluice"
check "llama-perplexity measured something" grep -q "Final estimate" "$work/ppl.stock.numbers"
same "perplexity with the plug-in" "$work/ppl.stock.numbers" "$work/ppl.plugin.numbers"
same "perplexity by sluice" "$work/ppl.stock.numbers" "$work/ppl.sluice.numbers"

for way in GGML_BACKEND_PATH LD_PRELOAD; do
    check "llama-bench with the plug-in by $way" env $way="$plugin" "$llama_bin/llama-bench" -m "$model" -p 16 -n 4 -r 1 -t 1
    cp "$work/out" "$work/bench.log"
    check "it says that it streams" grep -q "expert cache" "$work/bench.log"
done
"$sluice" bench -m "$model" -p 16 -n 4 -r 1 -t 1 >"$work/bench.txt" 2>"$work/bench.log"
check "sluice bench prints stock's table" grep -q "tg4" "$work/bench.txt"
check "and what was read" grep -q "decode: .* hit the cache" "$work/bench.log"
check "llama-cli with the plug-in" env LD_PRELOAD="$plugin" "$llama_bin/llama-cli" -m "$model" -p "In the" -n 4 -st --temp 0 -c 256 --simple-io --no-display-prompt
check "sluice chat, one turn" "$sluice" chat -m "$model" -p "In the" -n 4 -st --temp 0 -c 256 --simple-io

# --- the program's own words
check "sluice --version" grep -qF "llama.cpp v0.5.0" <("$sluice" --version)
for command in run chat serve bench perplexity quality inspect plan doctor verify pack unpack repair gate replay; do
    "$sluice" $command --help >"$work/help" 2>&1 </dev/null || { echo "FAILED  sluice $command --help"; failures=$((failures + 1)); }
    check "sluice $command --help tells its usage" grep -qF "usage: sluice $command" "$work/help"
done
check "help of run names every streaming option" grep -qF -- "--dense-weights" <("$sluice" run --help 2>&1)
check "help of run lists llama.cpp's options" grep -qF -- "--top-k" <("$sluice" run --help 2>&1)
check "sluice inspect" grep -qF "one token" <("$sluice" inspect "$model")
routes=$(dirname "$0")/../replay/routes/gptoss.csv
check "sluice replay compares policies with the optimum" grep -q "gap closed" <("$sluice" replay "$routes" --slots 4,8)
check "sluice replay --csv" grep -q "^-,gpt-oss,best," <("$sluice" replay - --csv --budget 600M <"$routes")
check "sluice replay with one budget tells bytes" grep -q "read per token" <("$sluice" replay "$routes" --slots 8 --policy reuse)
timed=("$routes" --slots 8 --device 2G,80us,8 --compute 5,5)
check "sluice replay --device tells times, and what nothing can be faster than" grep -q "^ *bound .* [0-9.]*$" <("$sluice" replay "${timed[@]}")
check "the same each time" cmp <("$sluice" replay "${timed[@]}" --foretell-layers 1 --csv) <("$sluice" replay "${timed[@]}" --foretell-layers 1 --csv)
check "sluice replay --profile-of" grep -q "+profile" <("$sluice" replay "$routes" --slots 8 --profile-of "$routes" --skip 20)
fails_saying "computing without a device" 2 "--compute has no effect without --device" "$sluice" replay "$routes" --compute 5,5
fails_saying "a device that is none" 2 "--device fast: auto, or" "$sluice" replay "$routes" --device fast
fails_saying "a drive that nobody probed" 1 "RATE,LATENCY,DEPTH" "$sluice" replay "$routes" --device auto
fails_saying "not a route trace" 1 "line 1 should name the columns" "$sluice" replay "$text"
fails_saying "an unknown policy" 2 "lru, frequency, reuse" "$sluice" replay --policy best "$routes"
fails_saying "no trace" 2 "which trace" "$sluice" replay
check "sluice inspect --json is JSON" python3 -c 'import json,sys; d=json.load(sys.stdin); assert d["experts"] > 0 and d["caches"], d' < <("$sluice" inspect "$model" --json)
# What doctor finds depends on the machine: 0 and 1 are both an answer.
doctor() {
    local rc=0
    "$sluice" doctor "$@" >"$work/doctor.txt" 2>"$work/doctor.err" </dev/null || rc=$?
    [ $rc -le 1 ] && [ ! -s "$work/doctor.err" ]
}
check "sluice doctor, quiet in a pipe" doctor "$model"
check "it tells where experts are read from" grep -q "^  store *$model, without checksums" <(tr -s '\n' <"$work/doctor.txt" | sed 's/ *$//')
check "it measures the model's drive" grep -q "drive-speed: reads of" "$work/doctor.txt"
check "sluice doctor without a model" doctor
check "it says what it did not look at" grep -q "not checked  direct-io: no file was named" "$work/doctor.txt"
check "sluice doctor --json" doctor --json "$model"
check "it is JSON" python3 -c 'import json,sys; d=json.load(sys.stdin); assert d["probe"]["runs"] and d["model"]["token_cycle_bytes"] > 0 and all(f["found"] for f in d["findings"]), d' <"$work/doctor.txt"
check "sluice doctor on 60 columns" env -C "$(dirname "$model")" COLUMNS=60 bash -c '[ "$("$0" doctor --no-probe "$1" | tee "$2" | wc -L)" -le 60 ] && grep -q "no-probe was given" "$2"' "$sluice" "$(basename "$model")" "$work/doctor.txt"
check "sluice doctor on a full disk" bash -c '"$0" doctor --no-probe 2>&1 >/dev/full | grep -q "closed or full"' "$sluice"
check "the option reference is up to date" diff <("$sluice" --options-markdown) "$(dirname "$0")/../../docs/options.md"

# --- what was used often is remembered, if asked for
profiled() { # NAME EXTRA...: a run with a profile, its text in NAME.txt and its log in NAME.log
    local name=$1
    shift
    env -u SLUICE_CACHE_MB "$sluice" run -m "$model" -p "In the beginning" -n 12 --temp 0 -c 256 -t 1 --cache-mb 3 --no-history \
        "$@" >"$work/$name.txt" 2>"$work/$name.log" </dev/null
}
check "a run without a profile" profiled cold
check "a run that keeps one" profiled first --profile "$work/m.profile"
check "it is there, and small" bash -c '[ -s "$0" ] && [ "$(stat -c %s "$0")" -le 1048576 ]' "$work/m.profile"
check "the first had none to begin with" bash -c '! grep -q "with a profile" "$0"' "$work/first.log"
check "a run that begins with it" profiled second --profile "$work/m.profile"
check "and says so" grep -q "with a profile of [0-9]* tokens" "$work/second.log"
same "the text is the same with it" "$work/cold.txt" "$work/second.txt"
check "two at once" bash -c 'one() { "$0" run -m "$1" -p "In the" -n 4 --temp 0 -c 256 -t 1 --no-history --profile "$2" >/dev/null 2>&1; }
    one "$@" & a=$!; one "$@" & b=$!; wait $a && wait $b' "$sluice" "$model" "$work/m.profile"
check "leave a whole one" profiled third --profile "$work/m.profile"
check "that is read" grep -q "with a profile of [0-9]* tokens" "$work/third.log"
head -c 100 "$work/m.profile" >"$work/cut.profile"
check "a run with a damaged profile" profiled cut --profile "$work/cut.profile"
check "says so" grep -q "without a profile: .*cut.profile is not used" "$work/cut.log"
check "and leaves a good one" profiled mended --profile "$work/cut.profile"
check "for the next" grep -q "with a profile of" "$work/mended.log"
echo "mine" >"$work/mine"
check "a run with a profile that is none" profiled none --profile "$work/mine"
check "leaves it as it is" grep -qx mine "$work/mine"
check "a profile of the user's" env SLUICE_CACHE_DIR="$work/kept" bash -c 'for i in 1 2; do "$0" run -m "$1" -p "In the" -n 4 --temp 0 -c 256 -t 1 --no-history --profile auto >"$2" 2>&1 || exit 1; done; grep -q "with a profile of" "$2"' "$sluice" "$model" "$work/out2"
fails_saying "a profile for a policy that counts nothing" 2 "has no effect with" "$sluice" run -m "$model" -p x --profile auto --cache-policy lru

# --- bounds of the cache
fails_saying "a ceiling below one expert" 1 "one expert takes" env -u SLUICE_CACHE_MB "$sluice" run -m "$model" -p x -n 2 --temp 0 -c 64 --cache-ceil-mb 4K
check "a floor above all experts" env -u SLUICE_CACHE_MB "$sluice" run -m "$model" -p "In the" -n 2 --temp 0 -c 64 --no-history --cache-floor-mb 4G
cp "$work/out" "$work/said"
check "is said to be more" grep -q "is more than all experts" "$work/said"
fails_saying "a number for the process that the context alone is beyond" 1 "+ context " env -u SLUICE_CACHE_MB "$sluice" run -m "$model" -p x -n 2 --temp 0 -c 4096 --ram 40M
fails_saying "where nobody knows the context yet" 1 "not known yet" env -u SLUICE_CACHE_MB "$sluice" perplexity -m "$model" -f "$work/text" -c 128 --ram 40M

# --- everything that cannot be is refused in words
printf 'not a model' >"$work/text.gguf"
head -c 100000 "$model" >"$work/short.gguf"
: >"$work/empty.gguf"
for f in text short empty; do
    fails_saying "run refuses $f.gguf" 1 "$work/$f.gguf" "$sluice" run -m "$work/$f.gguf" -p x
    fails_saying "inspect refuses $f.gguf" 1 "$work/$f.gguf" "$sluice" inspect "$work/$f.gguf"
done
for f in text short empty; do
    check "doctor looks at the drive under $f.gguf" doctor "$work/$f.gguf"
    check "and calls it a problem" grep -q "problem  *model: .*$f.gguf" <(tr -s '\n ' ' ' <"$work/doctor.txt")
    check "and says that it is no model" grep -q "none to stream: .*$f.gguf" <(tr -s '\n ' ' ' <"$work/doctor.txt")
done
for f in text short empty; do
    fails_saying "plan refuses $f.gguf" 1 "$work/$f.gguf" "$sluice" plan "$work/$f.gguf"
done
fails_saying "plan with a missing model" 1 "$work/none.gguf" "$sluice" plan "$work/none.gguf"
fails_saying "plan with no model" 2 "which model" "$sluice" plan
fails_saying "plan with a wrong argument" 2 "--frobnicate" "$sluice" plan "$model" --frobnicate
fails_saying "plan with memory that is none" 2 "is not a size" env -u SLUICE_CACHE_MB "$sluice" plan "$model" --ram much
fails_saying "plan of a lossy run" 2 "sluice quality" "$sluice" plan "$model" --n-expert-used 2
fails_saying "help for no command" 2 "there is no command nosuch" "$sluice" help nosuch
cp "$text" "$work/prompt.txt"
fails_saying "a record over the prompt of standard input" 2 "standard input comes from" \
    bash -c '"$0" run -m "$1" -n 2 --record "$2" <"$2"' "$sluice" "$model" "$work/prompt.txt"
check "the prompt is still there" cmp "$text" "$work/prompt.txt"
check "plan with the model after a switch" "$sluice" plan --json "$model" -t 1 -c 256
fails_saying "plan with two sizes" 2 "give one or the other" "$sluice" plan "$model" --cache-mb 3 --cache-ceil-mb 4
fails_saying "plan with more for experts than for all" 2 "is for the whole process" "$sluice" plan "$model" --ram 1G --cache-mb 1G
fails_saying "plan with nothing but the reserve" 2 "always stay unused" env -u SLUICE_CACHE_MB "$sluice" plan "$model" --ram 1
fails_saying "plan with a cache below one expert" 1 "cannot hold a single expert" "$sluice" plan "$model" --cache-mb 0.001
fails_saying "plan with too little memory, with the arithmetic" 1 "leave too little for experts" env -u SLUICE_CACHE_MB "$sluice" plan "$model" --ram 20M
fails_saying "doctor with a wrong argument" 2 "--frobnicate" "$sluice" doctor "$model" --frobnicate
fails_saying "doctor with two models" 2 "$model" "$sluice" doctor "$model" "$model"
fails_saying "doctor with a missing model" 1 "$work/none.gguf" "$sluice" doctor "$work/none.gguf"
fails_saying "a missing model" 1 "$work/none.gguf" "$sluice" run -m "$work/none.gguf" -p x
fails_saying "a directory as model" 1 "$work" "$sluice" run -m "$work" -p x
fails_saying "no model at all" 2 "-m" "$sluice" run -p x
fails_saying "an unknown command" 2 "dance" "$sluice" dance
fails_saying "an unknown option" any "--frobnicate" "$sluice" run -m "$model" -p x --frobnicate
fails_saying "a cache size that is none" 2 "12x" "$sluice" run -m "$model" -p x --cache-mb 12x
fails_saying "a flag without its value" 2 "--io-threads" "$sluice" run -m "$model" -p x --io-threads
fails_saying "threads out of range" 2 "1 to 64" "$sluice" run -m "$model" -p x --io-threads 65
fails_saying "an engine that is none" 2 "io_uring" "$sluice" run -m "$model" -p x --io-engine turbo
fails_saying "a variable that does not parse" 2 "SLUICE_CACHE_MB" env SLUICE_CACHE_MB=much "$sluice" run -m "$model" -p x
fails_saying "a variable that does not exist" 2 "SLUICE_CASH_MB" env SLUICE_CASH_MB=5 "$sluice" run -m "$model" -p x
fails_saying "a cache below one expert" 1 "cannot hold a single expert" "$sluice" run -m "$model" -p x --cache-mb 0.001
fails_saying "a load mode that reads all" 2 "dio" "$sluice" run -m "$model" -p x --load-mode dio
fails_saying "checking tensors" 2 "--check-tensors" "$sluice" run -m "$model" -p x --check-tensors
fails_saying "an option without effect" 2 "no effect" "$sluice" run -m "$model" -p x -cnv
fails_saying "Sluice as a device" 2 "leave SLUICE out" "$sluice" run -m "$model" -p x -dev SLUICE
fails_saying "no prompt at all" 2 "there is no prompt" "$sluice" run -m "$model"
long=$(printf 'a b c d e %.0s' {1..62})
fails_saying "a prompt between -c and the next multiple of 256" 0 "prompt 312 tokens" "$sluice" run -m "$model" -p "$long" -c 300 -n 4
for full in "inspect $model" "inspect --json $model" "run --help" "--version"; do
    # shellcheck disable=SC2086
    check "a full disk: sluice $full" bash -c '! "$@" >/dev/full' - "$sluice" $full
done
fails_saying "a prompt longer than the context" 1 "raise -c" "$sluice" run -m "$model" -f "$text" -c 64

# --- what it would take and how fast it would be
export SLUICE_CACHE_DIR=$work/planned
planned=(-t 1 -c 256 -n 16)
check "sluice plan" "$sluice" plan "$model" "${planned[@]}"
cp "$work/out" "$work/plan.txt"
for words in "dense weights" "predicted: at most" "not measured" "sluice probe" "none yet" "run it: sluice run -m"; do
    check "the plan tells \"$words\"" grep -qF -- "$words" "$work/plan.txt"
done
check "it fits 80 columns" env -C "$(dirname "$model")" bash -c '[ "$("$0" plan "$1" -t 1 -c 256 | grep -v "^run it\|^note" | wc -L)" -le 80 ]' "$sluice" "$(basename "$model")"
check "a plan of a prompt in a template says so, and counts the template" bash -c '"$0" plan "$1" -t 1 -c 512 -p x --chat | grep -q -e "^run it: .*--chat"' "$sluice" "$model"
for prompt in "-p x" "-p x --chat" ""; do
    "$sluice" plan "$model" -t 1 -c 512 --no-repack $prompt --json 2>/dev/null | python3 -c 'import json,sys; print(json.load(sys.stdin)["memory"]["program_bytes"])' || true
done >"$work/programs"
check "its largest batch is that of a prompt of unknown length" bash -c 'mapfile -t n <"$0"; [ "${n[0]}" -lt "${n[1]}" ] && [ "${n[1]}" -eq "${n[2]}" ]' "$work/programs"
check "its command has every option of ours" bash -c '"$0" plan "$1" -t 1 -c 256 --prefetch 2 --no-overlap | grep -q -e "^run it:.* --no-overlap --prefetch 2"' "$sluice" "$model"
check "what it measured is kept" grep -q '"kind":"speed"' "$SLUICE_CACHE_DIR/runs.jsonl"
"$sluice" run -m "$model" -p "In the beginning" --temp 0 "${planned[@]}" </dev/null >/dev/null 2>&1
check "a run leaves a line" grep -q '"kind":"run"' "$SLUICE_CACHE_DIR/runs.jsonl"
check "of nothing that was said or read" bash -c '! grep -qi -e beginning -e gguf -e "$(dirname "$1")" "$0"' "$SLUICE_CACHE_DIR/runs.jsonl" "$model"
"$sluice" run -m "$model" -p "In the beginning" --temp 0 "${planned[@]}" --no-history </dev/null >/dev/null 2>&1
"$sluice" run -m "$model" -p "In the beginning" --temp 0 -t 1 -c 256 -n 4 </dev/null >/dev/null 2>&1
"$sluice" run -m "$model" -p "In the beginning" --temp 0 "${planned[@]}" --no-overlap </dev/null >/dev/null 2>&1
check "not if told so, nor of a few tokens, nor for a comparison" [ "$(grep -c '"kind":"run"' "$SLUICE_CACHE_DIR/runs.jsonl")" = 1 ]
check "sluice plan --json" "$sluice" plan "$model" "${planned[@]}" --json
cp "$work/out" "$work/plan.json"
check "it knows that run, and what was predicted before it" python3 -c '
import json, sys
d = json.load(sys.stdin)
run, token, memory = d["past_runs"][-1], d["token"], d["memory"]
assert d["format"] == "sluice-plan" and run["tokens"] == 15 and run["predicted"][0] == 0 < run["predicted"][1], run
assert token["compute_basis"] == token["drive_basis"] == token["hit_rate_basis"] == "past runs", token
low, high = token["tokens_per_second"]
assert 0 < low < high <= 1.01 * 1.7 ** 2 * low and low <= run["measured"] <= high and token["runs_alike"] == 1, token
assert memory["total_bytes"] == sum(memory[k] for k in memory if k not in ("total_bytes", "free_bytes")), memory
assert memory["cache_bytes"] <= '"$cache"' << 20 and d["caches"][-1]["cache_bytes"] == d["cache"]["full_bytes"], d
assert all(a["cache_bytes"] < b["cache_bytes"] for a, b in zip(d["caches"], d["caches"][1:])), d
' <"$work/plan.json"
for ram in 1G "1G -c 4096"; do
    # shellcheck disable=SC2086
    env -u SLUICE_CACHE_MB "$sluice" plan "$model" --ram $ram --json >"$work/ram.json" 2>/dev/null
    check "a plan for --ram $ram stays within" python3 -c 'import json,sys; assert json.load(sys.stdin)["memory"]["total_bytes"] <= 1 << 30' <"$work/ram.json"
done
# Both reckon with the same needs: what one calls enough the other does, too, and it is.
# shellcheck disable=SC2086
for options in "" "-ub 128" "-c 2048 -ub 64" "-nr"; do
    least=$(env -u SLUICE_CACHE_MB "$sluice" plan "$model" -t 1 -c 512 -p "In the beginning" --ram 40 $options 2>&1 | sed -n 's/.*give --ram at least \([0-9]*\) MiB.*/\1/p' || true)
    also=$(env -u SLUICE_CACHE_MB "$sluice" run -m "$model" -t 1 -c 512 -p "In the beginning" --ram 40 $options 2>&1 | sed -n 's/.*give --ram at least \([0-9]*\) MiB.*/\1/p' || true)
    check "plan and run name the same least memory ($least, $also; $options)" [ "$least" -gt 40 -a "$least" = "$also" ]
    check "a plan with it" env -u SLUICE_CACHE_MB "$sluice" plan "$model" -t 1 -c 512 -p "In the beginning" --ram "$least" $options
    check "a run with it" env -u SLUICE_CACHE_MB "$sluice" run -m "$model" -t 1 -c 512 -n 4 -p "In the beginning" --ram "$least" $options
done
# The program measures what the plan estimates, so the two need not be equal; but one must be true.
env -u SLUICE_CACHE_MB "$sluice" plan "$model" "${planned[@]}" --ram 78M >"$work/ram.txt"
check "the command of a plan with --ram has it" grep -q "^run it: .* --ram 78\( \|$\)" "$work/ram.txt"
check "and no other size" bash -c '! grep -q "^run it: .*--cache" "$0"' "$work/ram.txt"
env -u SLUICE_CACHE_MB "$sluice" plan "$model" "${planned[@]}" --ram 78M --json >"$work/ram.json"
sed -n 's/^run it: sluice/exec "$0"/p' "$work/ram.txt" >"$work/planned.sh"
check "it runs" env -u SLUICE_CACHE_MB bash -c "$(cat "$work/planned.sh") --record $work/ram.jsonl" "$sluice"
check "with no fewer experts than planned" python3 -c '
import json, sys
planned = json.load(open(sys.argv[1]))["memory"]["cache_bytes"]
had = [r["bytes"] for r in map(json.loads, open(sys.argv[2])) if r.get("kind") == "cache"][-1]
assert had >= planned > 0, (had, planned)
' "$work/ram.json" "$work/ram.jsonl"
"$sluice" plan "$model" "${planned[@]}" | sed -n 's/^run it: sluice/exec "$0"/p' >"$work/planned.sh"
check "the command runs" bash -c "$(cat "$work/planned.sh")" "$sluice"
: >"$SLUICE_CACHE_DIR/file"
check "without a place for it a run is as always" env SLUICE_CACHE_DIR="$SLUICE_CACHE_DIR/file" "$sluice" run -m "$model" -p "In the" --temp 0 "${planned[@]}"
check "and says nothing of it" bash -c '! grep -q -e runs.jsonl -e remember "$0"' "$work/out"
check "a plan, too" env SLUICE_CACHE_DIR="$SLUICE_CACHE_DIR/file" "$sluice" plan "$model" "${planned[@]}"
export SLUICE_CACHE_DIR=$work/user

# --- checksums
cp "$model" "$work/sums.gguf"
fails_saying "no checksums yet" 1 "verify --write" "$sluice" verify "$work/sums.gguf"
check "checksums are made" "$sluice" verify --write "$work/sums.gguf"
check "nothing is damaged" "$sluice" verify "$work/sums.gguf"
check "nor in a sample" "$sluice" verify --quick "$work/sums.gguf"
fails_saying "a sample and all of it" 2 "opposites" "$sluice" verify --quick --full "$work/sums.gguf"
fails_saying "no model to verify" 2 "which model" "$sluice" verify

# --- packs
cp "$model" "$work/pack.gguf"
pack=$work/pack.gguf
fails_saying "no model to pack" 2 "which model" "$sluice" pack
fails_saying "a layout that is none" 2 "neither layer nor component" "$sluice" pack "$pack" --layout spiral
fails_saying "a file too small for a layer" 2 "more than a file may have" "$sluice" pack "$pack" --split 100K
fails_saying "a model is not emptied without being told" 2 "--yes" "$sluice" pack --reclaim "$pack"
fails_saying "nothing to unpack" 1 "there is no pack of" "$sluice" unpack "$pack"
check "a pack is made" "$sluice" pack "$pack" --split 12M
cp "$work/out" "$work/packing"
check "it tells what is next" grep -q "next: sluice verify" "$work/packing"
check "and is complete" "$sluice" pack "$pack"
check "nothing of it is damaged" "$sluice" verify "$pack"
check "by its own name too" "$sluice" verify --quick "$pack.sluice"
"$sluice" run -m "$pack" -p "In the beginning" -n 24 --temp 0 -c 256 -t 2 --no-display-prompt --store pack </dev/null >"$work/packed.txt" 2>"$work/packed.log"
same "the same text from a pack" "$work/run.txt" "$work/packed.txt"
check "experts were read from it" grep -qF "experts are read from $pack.sluice" "$work/packed.log"
"$sluice" run -m "$pack" -p "In the beginning" -n 24 --temp 0 -c 256 -t 2 --no-display-prompt </dev/null >"$work/own.txt" 2>"$work/own.log"
same "and beside it" "$work/run.txt" "$work/own.txt"
check "not from it" bash -c '! grep -q "experts are read from" "$0"' "$work/own.log"
check "inspect names it" grep -qF "$pack.sluice" <("$sluice" inspect "$pack")
printf 'x' | dd of="$pack.sluice.1" bs=1 seek=9000 conv=notrunc 2>/dev/null
fails_saying "a damaged pack" 1 "damaged: dense bytes, block 0" "$sluice" verify "$pack"
check "it is mended" "$sluice" repair "$pack"
check "and whole" "$sluice" verify "$pack" --mirror "$model"
mkdir "$work/back"
check "the model comes back" "$sluice" unpack "$pack.sluice" --out "$work/back"
same "byte for byte" "$model" "$work/back/pack.gguf"
if "$sluice" pack --reclaim --yes "$pack" >"$work/packing" 2>&1; then
    check "its room is given back" bash -c '[ $(stat -c %b "$0") -lt $(($(stat -c %b "$1") / 2)) ]' "$pack" "$model"
    check "a note says so" grep -q "sluice unpack --in-place" "$pack.reclaimed"
    "$sluice" run -m "$pack" -p "In the beginning" -n 24 --temp 0 -c 256 -t 2 --no-display-prompt </dev/null >"$work/skeleton.txt" 2>/dev/null
    same "the same text from a reclaimed model" "$work/run.txt" "$work/skeleton.txt"
    fails_saying "it is not run without its pack" 1 "taken out" "$sluice" run -m "$pack" -p x --store gguf
    mv "$pack.sluice" "$work/away.sluice"
    fails_saying "nor with the pack gone" 1 "holes where its experts should be" "$sluice" run -m "$pack" -p x
    mv "$work/away.sluice" "$pack.sluice"
    check "it is whole where it is there" "$sluice" verify "$pack"
    check "its experts come back" "$sluice" unpack --in-place "$pack"
    same "to the last byte" "$model" "$pack"
    check "the note is gone" test ! -e "$pack.reclaimed"
else
    check "a file system that gives nothing back is named" grep -q "cannot give back" "$work/packing"
fi

# --- the report of a run
"$sluice" run -m "$model" -p "In the beginning" -n 24 --temp 0 -c 256 -t 2 --record "$work/run.jsonl" </dev/null >/dev/null 2>&1
cp "$work/run.jsonl" "$work/kept.jsonl"
check "a report as a page" "$sluice" report "$work/run.jsonl" -o "$work/report.html"
check "the page is whole" grep -q '^</html>' "$work/report.html"
check "the model is in it" grep -qF "$(basename "$model")" "$work/report.html"
"$sluice" report "$work/run.jsonl" -o - >"$work/report.piped" 2>/dev/null
same "the page to standard output" "$work/report.html" "$work/report.piped"
"$sluice" report "$work/run.jsonl" "$work/kept.jsonl" --text >"$work/report.md"
check "a report as text" grep -q "^Where a token goes (decode):" "$work/report.md"
check "two runs are compared" grep -q "no difference shown" "$work/report.md"
check "a report of a pipe" bash -c '"$1" report /dev/stdin --text < <(cat "$2") | grep -q "^## A: .stdin"' - "$sluice" "$work/run.jsonl"
fails_saying "a pipe that is no record" 1 "/dev/stdin is not a run record" bash -c '"$1" report /dev/stdin < <(cat "$2")' - "$sluice" "$text"
completes() { # WORDS...: what bash offers for the last of them
    bash -c 'source <("$1" --bash-completion); shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sluice; echo " ${COMPREPLY[*]} "' - "$sluice" "$@"
}
check "report completes its own flags" grep -q -- " --text " <(completes sluice report -)
check "and no streaming ones" bash -c '! grep -q -e --cache-mb -e --live' <<<"$(completes sluice report -)"
check "run completes streaming flags" grep -q -- " --live " <(completes sluice run -)
check "and none of the server's" bash -c '! grep -q -e --metrics-port' <<<"$(completes sluice run -)"
check "serve completes its own" grep -q -- " --metrics-port " <(completes sluice serve -)
fails_saying "no record" 2 "which record" "$sluice" report
fails_saying "a file that is no record" 1 "is not a run record" "$sluice" report "$text"
fails_saying "a record that is not there" 1 "No such file" "$sluice" report "$work/none.jsonl"
fails_saying "a record as the place to write to" 2 "not a place to write to" "$sluice" report "$work/run.jsonl" -o "$work/./run.jsonl"
same "the record is as it was" "$work/run.jsonl" "$work/kept.jsonl"
fails_saying "two things on standard output" 2 "standard output" "$sluice" report "$work/run.jsonl" -o - --text
fails_saying "a page to a full disk" 1 "No space left" "$sluice" report "$work/run.jsonl" -o /dev/full
fails_saying "a page in no folder" 1 "No such file" "$sluice" report "$work/run.jsonl" -o "$work/none/report.html"
fails_saying "a picture without a browser" 1 "which is no program" env CHROME=/none "$sluice" report "$work/run.jsonl" --png "$work/p.png"
check "a full disk: sluice report --text" bash -c '! "$@" >/dev/full' - "$sluice" report "$work/run.jsonl" --text

# --- the plug-in refuses too: the model does not load, the host ends by itself
plug() { env LD_PRELOAD="$plugin" "$@"; }
completion=("$llama_bin/llama-completion" -m "$model" -p x -n 2 -no-cnv -c 64)
fails_saying "plug-in: a wrong variable" any "SLUICE_IO_THREADS" plug env SLUICE_IO_THREADS=0 "${completion[@]}"
fails_saying "plug-in: an unknown variable" any "SLUICE_CASH_MB" plug env SLUICE_CASH_MB=1 "${completion[@]}"
fails_saying "plug-in: a variable that does not parse" any 'SLUICE_CACHE_MB: "much"' plug env SLUICE_CACHE_MB=much "${completion[@]}"
check "is told once" [ "$(grep -c 'SLUICE_CACHE_MB: "much"' "$work/out")" = 1 ]
fails_saying "plug-in: a cache below one expert" any "cannot hold a single expert" plug env SLUICE_CACHE_MB=0.001 "${completion[@]}"
for mode in none dio mlock mmap+mlock; do
    fails_saying "plug-in: load mode $mode" any "$mode" plug "${completion[@]}" --load-mode $mode
done
fails_saying "plug-in: Sluice as a device" any "leave SLUICE out" plug "${completion[@]}" -dev SLUICE
fails_saying "plug-in: a dense tensor placed on it" any "holds no experts" plug "${completion[@]}" -ot attn_q=SLUICE
fails_saying "plug-in: checking tensors" any "--check-tensors" plug "${completion[@]}" --check-tensors
LD_PRELOAD="$wrong_version $plugin" "${completion[@]}" >"$work/version.log" 2>&1 </dev/null || true
check "plug-in: another version is refused by name" grep -qE "built for llama.cpp v0.5.0 .*runs ggml 9.9.9" "$work/version.log"

echo "$failures failures"
[ "$failures" -eq 0 ]
