#!/usr/bin/env bash
# Owns: handing every generated model to stock llama.cpp once.
# Usage: check_models.sh DIRECTORY SLUICE_CHECK_MODEL
set -euo pipefail

if [ $# -ne 2 ]; then
    sed -n 's/^# Usage/usage/p' "$0" >&2
    exit 2
fi
cd "$1"
models=()
for file in *.gguf; do
    # Of shards, llama.cpp wants the first.
    case $file in
        *-00001-of-*) ;;
        *-of-*) continue ;;
        # Has no experts to look at: it stands for the models that are none of our business.
        dense-*) continue ;;
    esac
    models+=("$file")
done
exec "$2" "${models[@]}"
