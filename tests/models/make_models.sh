#!/usr/bin/env bash
# Owns: which models the tests share: (architecture, type) pairs, shapes and shards, made in one directory.
# Keeps: a model that is newer than the generator and this script is left alone; a file has its name only when whole.
# Usage: make_models.sh DIRECTORY SLUICE_MAKE_MODEL LLAMA_BIN
set -euo pipefail

if [ $# -ne 3 ]; then
    sed -n 's/^# Usage/usage/p' "$0" >&2
    exit 2
fi
directory=$1 make_model=$2 llama_bin=$3
mkdir -p "$directory"
cd "$directory"
# Test runs of two build presets may share the directory.
exec 9>.lock
flock 9

fresh() { # FILE: is there nothing to do?
    [ -e "$1" ] && [ "$1" -nt "$make_model" ] && [ "$1" -nt "$script" ]
}
script=$(realpath "${BASH_SOURCE[0]}")

made() { # NAME GENERATOR-OPTIONS...
    local name=$1
    shift
    fresh "$name.gguf" || "$make_model" "$@" -o "$name.gguf"
}

quantised() { # SOURCE TYPE QUANTISER-OPTIONS...: SOURCE-TYPE.gguf from SOURCE-f16.gguf
    local source=$1 type=$2
    shift 2
    local target=$source-${type,,}.gguf
    fresh "$target" && return
    if ! "$llama_bin/llama-quantize" "$@" "$source-f16.gguf" "$target.partial" "$type" 1 >quantize.log 2>&1; then
        cat quantize.log >&2
        return 1
    fi
    mv "$target.partial" "$target"
}

sharded() { # SOURCE SHARDS TENSORS-PER-SHARD
    local source=$1 shards=$2 tensors=$3
    local prefix=$source-shards$shards first
    first=$(printf '%s-00001-of-%05d.gguf' "$prefix" "$shards")
    fresh "$first" && return
    rm -f "$prefix"-*.gguf
    "$llama_bin/llama-gguf-split" --split --split-max-tensors "$tensors" "$source.gguf" "$prefix" >split.log 2>&1 ||
        { cat split.log >&2; return 1; }
    [ -e "$first" ] || { echo "$source did not split into $shards shards" >&2; return 1; }
}

# Every architecture as it is.
for arch in $("$make_model" --list-archs); do
    made "$arch-f16" --arch "$arch"
done

# Every type that has kernels of its own.
for type in Q8_0 Q4_0 Q4_K_M Q6_K IQ4_XS IQ3_S MXFP4_MOE; do
    quantised qwen3moe $type
done
