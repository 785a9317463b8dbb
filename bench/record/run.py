#!/usr/bin/env python3
"""Owns: what recording a run costs, as a ratio within one run.

Decode of llama-bench with the plug-in, everything resident (where a token is shortest and recording shows most) and with
a small cache: without any output, with --record, and with every output but the compute traces. Arms are interleaved
A/B/B/A; medians and spread are printed, with the drift of the control. Run it on an idle machine. Writes Markdown to
standard output.
"""
import argparse
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import MIB, compare, llama_bench  # noqa: E402


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama-bench", required=True)
    p.add_argument("--plugin", required=True)
    p.add_argument("--models", required=True, nargs="+")
    p.add_argument("--small-cache-mb", type=int, nargs="+", required=True, help="one per model")
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=6)
    args = p.parse_args()

    print("| decode, tok/s | no output | with | ratio | drift of the control |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as work:
        outputs = {"--record": {"SLUICE_RECORD": f"{work}/record"}}
        outputs["record, csv, route and read traces"] = {"SLUICE_CSV": f"{work}/csv", "SLUICE_ROUTE_TRACE": f"{work}/routes",
                                                         "SLUICE_IO_TRACE": f"{work}/reads", **outputs["--record"]}
        for model, small in zip(args.models, args.small_cache_mb):
            full = os.path.getsize(model) * 11 // 10 // MIB
            for cache, cache_mb in (("resident", full), (f"cache {small} MiB", small)):
                for name, extra in outputs.items():
                    env = {"GGML_BACKEND_PATH": args.plugin, "SLUICE_CACHE_MB": str(cache_mb), "SLUICE_LOG": "warn"}

                    def arm(more):
                        return llama_bench(args.llama_bench, model, 1, 0, args.tokens, 3, {**env, **more})
                    compare(f"{os.path.basename(model)}, {cache}: {name}", lambda: arm({}), lambda: arm(extra), args.rounds)


if __name__ == "__main__":
    main()
