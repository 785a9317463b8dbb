#!/usr/bin/env bash
# Owns: `make race`: the generated mid model at 30, 50, 75 and 120 % of its size, Sluice against stock llama.cpp.
# An interrupted race is continued; a finished one is moved aside first. Needs root for the memory cells, 2.2 GB of disk
# once, a machine on which nothing else runs, and about a quarter of an hour.
#
# Usage: bench/race/mid.sh [RACE_OPTION...]   for example --rounds 4, which also decides what is the same race
# SLUICE_RACE_MODEL names another model. It must be a Mixture-of-Experts model that stock llama.cpp can run.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf 'race: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

sluice=build/sluice
make_model=build/tests/models/sluice-make-model
out=build/race/race.jsonl
cache=${SLUICE_CACHE_DIR:-$HOME/.cache/sluice}
model=${SLUICE_RACE_MODEL:-$cache/mid-q8_0.gguf}

if [ ! -e "$model" ]; then
    [ -z "${SLUICE_RACE_MODEL:-}" ] || die "there is no $model"
    mkdir -p "$cache"
    free_mib=$(df --output=avail -m "$cache" | tail -n 1 | tr -d ' ')
    [ "$free_mib" -ge 2200 ] || die "$cache has $free_mib MiB free; the model needs 2200: set SLUICE_CACHE_DIR to another drive"
    say "making the model, 1.8 GB, once: $model"
    trap 'rm -f "$model.part"' EXIT
    "$make_model" --preset mid -o "$model.part" >/dev/null
    mv "$model.part" "$model"
fi

mkdir -p "$(dirname "$out")"
to=--out
if [ -e "$out" ]; then
    if tail -n 1 "$out" | grep -q '"kind": "end"'; then
        mv "$out" "${out%.jsonl}-$(date -u -r "$out" +%Y%m%dT%H%M%SZ).jsonl"
    else
        say "continuing $out (remove it to begin again)"
        to=--resume
    fi
fi

# Few tokens: with 30 % of the model in memory stock llama.cpp takes seconds for each.
bench/race/race.py --model "$model" --ram 30%,50%,75%,120% --rounds 3 --n-predict 12 --time-limit 150 \
    --arm stock-mmap --arm stock-mmap-no-repack --arm stock-dio --arm sluice-plugin --arm sluice-run \
    --set llama_bin="$(scripts/setup.sh --print-build-dir)/bin" --set sluice="$sluice" \
    --set plugin=build/libggml-sluice.so "$to" "$out" "$@"

if "$sluice" --help 2>&1 | grep -qE '^ *(sluice )?report\b'; then
    "$sluice" report --text "$out"
else
    say "measured: $out (this build of Sluice has no command to judge it)"
fi
