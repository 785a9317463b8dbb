#!/usr/bin/env python3
"""Writes a checkpoint of train.py as an F16 GGUF file of the architecture qwen3moe, which stock llama.cpp loads.

Needs the gguf-py folder of the llama.cpp source that scripts/setup.sh fetched.
"""
import argparse
import sys
from pathlib import Path

CONTEXT_LENGTH = 1024  # what the file promises; training saw 256
FILE_TYPE_F16 = 1

TOKEN_NORMAL, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_BYTE = 1, 2, 3, 6


def write_metadata(writer, geometry):
    writer.add_name("Sluice demo MoE")
    writer.add_description(
        "Small Mixture-of-Experts language model trained from scratch on free reference texts and code; "
        "for demonstrations and tests of expert streaming"
    )
    writer.add_license("mit")
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(geometry["width"])
    writer.add_block_count(geometry["layers"])
    writer.add_feed_forward_length(geometry["expert_width"])
    writer.add_expert_feed_forward_length(geometry["expert_width"])
    writer.add_head_count(geometry["heads"])
    writer.add_head_count_kv(geometry["kv_heads"])
    writer.add_key_length(geometry["head_width"])
    writer.add_value_length(geometry["head_width"])
    writer.add_rope_freq_base(geometry["rope_base"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(geometry["experts"])
    writer.add_expert_used_count(geometry["experts_used"])
    writer.add_vocab_size(geometry["vocabulary"])
    writer.add_file_type(FILE_TYPE_F16)


def token_type(tokenizer, token):
    if tokenizer.is_unknown(token):
        return TOKEN_UNKNOWN
    if tokenizer.is_control(token):
        return TOKEN_CONTROL
    return TOKEN_BYTE if tokenizer.is_byte(token) else TOKEN_NORMAL


def write_tokenizer(writer, tokenizer):
    tokens = range(tokenizer.get_piece_size())
    writer.add_tokenizer_model("llama")
    writer.add_token_list([tokenizer.id_to_piece(token).encode() for token in tokens])
    writer.add_token_scores([tokenizer.get_score(token) for token in tokens])
    writer.add_token_types([token_type(tokenizer, token) for token in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)


def write_weights(writer, weights, n_layers):
    """llama.cpp wants a matrix's input dimension last; train.py keeps it first (after the expert's number)."""
    import numpy as np

    def vector(name, key):
        writer.add_tensor(name, weights[key].float().numpy())

    def matrix(name, key, dtype=np.float16):
        transposed = weights[key].transpose(-2, -1).float().numpy()
        writer.add_tensor(name, np.ascontiguousarray(transposed.astype(dtype)))

    writer.add_tensor("token_embd.weight", weights["embedding"].float().numpy().astype(np.float16))
    vector("output_norm.weight", "norm.gain")
    matrix("output.weight", "head.weight")
    for layer in range(n_layers):
        source = f"blocks.{layer}."
        target = f"blk.{layer}."
        vector(target + "attn_norm.weight", source + "attention_norm.gain")
        vector(target + "ffn_norm.weight", source + "experts_norm.gain")
        for ours, theirs in (("query", "attn_q"), ("key", "attn_k"), ("value", "attn_v"), ("output", "attn_output")):
            matrix(f"{target}{theirs}.weight", f"{source}attention.{ours}.weight")
        vector(target + "attn_q_norm.weight", source + "attention.query_norm.gain")
        vector(target + "attn_k_norm.weight", source + "attention.key_norm.gain")
        matrix(target + "ffn_gate_inp.weight", source + "experts.router", np.float32)
        for component in ("gate", "up", "down"):
            matrix(f"{target}ffn_{component}_exps.weight", f"{source}experts.{component}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--tokenizer", type=Path, default=Path("spm.model"), help="default: %(default)s")
    parser.add_argument("--gguf-py", type=Path, help="the folder gguf-py of a llama.cpp source (default: the installed module gguf)")
    arguments = parser.parse_args()

    if arguments.gguf_py:
        sys.path.insert(0, str(arguments.gguf_py))
    import gguf
    import sentencepiece
    import torch

    checkpoint = torch.load(arguments.checkpoint, map_location="cpu")
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(arguments.tokenizer))

    writer = gguf.GGUFWriter(str(arguments.output), "qwen3moe")
    write_metadata(writer, checkpoint["geometry"])
    write_tokenizer(writer, tokenizer)
    write_weights(writer, checkpoint["model"], checkpoint["geometry"]["layers"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
