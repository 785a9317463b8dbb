#!/usr/bin/env python3
"""Turns the corpus into token files (uint16) for both training phases. Run it after the tokenizer is trained.

Reads documents.json, writes train.bin and val.bin (phase 1: everything), phase2.bin and phase2_val.bin (phase 2: the
King James Bible twice, and a few other texts so that the rest is not forgotten), and the two texts for perplexity,
heldout_kjv.txt and heldout_general.txt, from documents that are in neither phase.
"""
import argparse
import json
import random
import re
from pathlib import Path

SEED = 3
BEGIN_TOKEN = 1
END_TOKEN = 2

BIBLE = "kjv"
BIBLE_VALIDATION_SHARE = 25  # one document in this many
# The Bible's weight in phase 2, and what is mixed in.
BIBLE_REPEATS = 2
OTHER_SOURCES = ("gcide", "foldoc", "jargon", "fortune", "debdoc", "wn", "python", "man")
OTHER_DOCUMENTS = 700

HELDOUT_GENERAL_SOURCES = ("gcide", "foldoc", "jargon", "fortune", "debdoc")
HELDOUT_GENERAL_CHARS = 100_000


def plain_verses(text):
    """Bible text without verse numbers and line breaks."""
    text = re.sub(r"(?m)^\s*\d+ ", "", text)
    text = re.sub(r"\n(?!\n)", " ", text)
    return re.sub(r" +", " ", text).strip()


def encode(tokenizer, texts):
    import numpy as np

    tokens = []
    for text in texts:
        tokens.append(BEGIN_TOKEN)
        tokens.extend(tokenizer.encode(text))
        tokens.append(END_TOKEN)
    return np.array(tokens, dtype=np.uint16)


def save(tokens, path):
    tokens.tofile(path)
    print(f"{path}: {len(tokens)} tokens")


def phase_two_texts(train_documents):
    """Bible texts to train and to validate with, and the other texts, each in random order."""
    random.seed(SEED)
    bible = [plain_verses(text) for source, text in train_documents if source == BIBLE]
    random.shuffle(bible)
    n_validation = len(bible) // BIBLE_VALIDATION_SHARE
    others = [text for source, text in train_documents if source in OTHER_SOURCES]
    random.shuffle(others)
    return bible[n_validation:], bible[:n_validation], others[:OTHER_DOCUMENTS]


def write_heldout(validation_documents, directory):
    bible = "\n\n".join(plain_verses(text) for source, text in validation_documents if source == BIBLE)
    general = "\n\n".join(text for source, text in validation_documents if source in HELDOUT_GENERAL_SOURCES)
    (directory / "heldout_kjv.txt").write_text(bible, encoding="utf-8")
    (directory / "heldout_general.txt").write_text(general[:HELDOUT_GENERAL_CHARS], encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="default: %(default)s")
    parser.add_argument("--tokenizer", type=Path, default=Path("spm.model"), help="default: %(default)s")
    arguments = parser.parse_args()

    import numpy as np
    import sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(arguments.tokenizer))
    data = arguments.data_dir
    parts = json.loads((data / "documents.json").read_text(encoding="utf-8"))

    for part in ("train", "val"):
        save(encode(tokenizer, (text for _, text in parts[part])), data / f"{part}.bin")

    bible, bible_validation, others = phase_two_texts(parts["train"])
    bible_tokens = encode(tokenizer, bible)
    mixed = np.concatenate([bible_tokens] * BIBLE_REPEATS + [encode(tokenizer, others)])
    save(mixed, data / "phase2.bin")
    save(encode(tokenizer, bible_validation), data / "phase2_val.bin")

    write_heldout(parts["val"], data)


if __name__ == "__main__":
    main()
