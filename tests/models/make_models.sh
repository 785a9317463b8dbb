#!/usr/bin/env bash
# Owns: which models the tests share: (architecture, type) pairs, shapes and shards, made in one directory.
# Keeps: a model that is newer than the generator and this script is left alone; a file has its name only when whole.
# Usage: make_models.sh DIRECTORY SLUICE_MAKE_MODEL LLAMA_BIN
set -euo pipefail

if [ $# -ne 3 ]; then
    sed -n 's/^# Usage/usage/p' "$0" >&2
    exit 2
fi
directory=$1 make_model=$(realpath "$2") llama_bin=$(realpath "$3")
script=$(realpath "${BASH_SOURCE[0]}")
mkdir -p "$directory"
cd "$directory"
# Test runs of two build presets may share the directory.
exec 9>.lock
flock 9

fresh() { # FILE: is there nothing to do?
    [ -e "$1" ] && [ "$1" -nt "$make_model" ] && [ "$1" -nt "$script" ]
}


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
    printf -v first '%s-00001-of-%05d.gguf' "$prefix" "$shards"
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


# Shapes that one architecture alone does not show.
made qwen3moe-odd-f16 --arch qwen3moe --embd 128 --ff 96 --layers 4 --experts 16 --top-k 4
made qwen3moe-deep-f16 --arch qwen3moe --embd 128 --ff 128 --layers 8 --experts 8 --top-k 2
made qwen3moe-top1-f16 --arch qwen3moe --embd 128 --ff 160 --layers 4 --top-k 1
made qwen3moe-tied-f16 --arch qwen3moe --tied
made qwen3moe-aligned-f16 --arch qwen3moe --alignment 4096 --ff 96
made qwen3moe-mixed --arch qwen3moe --mixed-types
made gemma4-mixed --arch gemma4 --mixed-types --ff 256
made deepseek2-mixed --arch deepseek2 --mixed-types
made qwen35moe-fused-f16 --arch qwen35moe --fused
made deepseek2-fused-f16 --arch deepseek2 --fused
made gemma4-separate-f16 --arch gemma4 --separate
made gemma4-ple-f16 --arch gemma4 --embd-per-layer 32
# No experts at all, and enough of everything that a per cent of the dense bytes is more than rounding.
made dense-f16 --arch deepseek2 --layers 3 --dense-layers 3
made wide-f16 --arch qwen3moe --embd 512 --ff 256 --layers 2 --experts 32 --vocab 8192
made glm4moe-groups-f16 --arch glm4moe --groups 4 --groups-used 2

# Every type that has kernels of its own.
for type in Q8_0 Q4_0 Q4_K_M Q6_K IQ4_XS IQ3_S MXFP4_MOE; do
    quantised qwen3moe $type
done
# Slices that are no multiple of a page, nor of each other.
quantised qwen3moe-odd Q8_0
quantised qwen3moe-odd Q4_0
quantised qwen3moe-deep Q8_0

# Every architecture in a type that its published models have; rows of 96 fall back to other types by themselves.
quantised qwen2moe Q4_K_M
quantised gpt-oss MXFP4_MOE
quantised gemma4 Q4_K_M
quantised deepseek2 Q4_K_M
quantised glm4moe IQ4_XS
quantised llama IQ3_S
quantised olmoe Q6_K
quantised qwen35moe Q4_K_M
quantised lfm2moe Q4_0
quantised bailingmoe3 Q8_0
quantised qwen4exp Q8_0
quantised llama4 Q4_K_M
quantised smallthinker Q4_0
quantised grovemoe Q8_0
quantised nemotron_h_moe Q4_K_M
quantised deepseek4 MXFP4_MOE

sharded qwen3moe-deep-f16 2 50
sharded qwen3moe-deep-f16 5 20
