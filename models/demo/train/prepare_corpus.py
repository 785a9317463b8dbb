#!/usr/bin/env python3
"""Builds the text corpus of the demo model from texts that Debian packages ship.

Writes train.txt and val.txt (for the tokenizer) and documents.json (for encode_corpus.py) into the output directory.
A source whose package is not installed is left out, with a line that says so. See ../README.md for the packages.
"""
import argparse
import glob
import gzip
import html
import json
import random
import re
import subprocess
from pathlib import Path

SEED = 7
MIN_DOCUMENT_CHARS = 200
MAN_PAGES = 3000
VALIDATION_SHARE = 100  # one document in this many

DICTIONARIES = Path("/usr/share/dictd")


def read_text(path):
    """The file's text, unpacked if need be; bytes that are not UTF-8 are dropped. Unreadable files are empty."""
    opener = gzip.open if str(path).endswith((".gz", ".dz")) else open
    try:
        with opener(path, "rb") as file:
            return file.read().decode("utf-8", "ignore")
    except (OSError, EOFError):
        return ""


def find(*patterns):
    """Files that match, sorted, so that one machine gives the same corpus twice."""
    return [path for pattern in patterns for path in sorted(glob.glob(pattern, recursive=True))]


def pieces(text, size):
    return [text[i : i + size] for i in range(0, len(text), size)]


def bible_documents():
    try:
        command = ["bible", "-l79", "gen1:1-rev22:21"]
        text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    except OSError:
        return []
    return pieces(text, 4000)


def dictionary_documents(name):
    """Dictionary entries (each begins at the left margin), packed into documents of about 3,000 characters."""
    text = read_text(DICTIONARIES / f"{name}.dict.dz")
    documents = []
    current = ""
    for entry in re.split(r"\n(?=\S)", text):
        current += entry + "\n"
        if len(current) > 3000:
            documents.append(current)
            current = ""
    return documents


def file_documents(max_chars, *patterns):
    """The beginning of each file."""
    return [read_text(path)[:max_chars] for path in find(*patterns)]


def man_page_text(path):
    """A manual page without most of its roff."""
    text = read_text(path)
    text = re.sub(r'(?m)^\.\\".*$', "", text)
    text = re.sub(r"\\f[A-Z]|\\&|\\-", lambda match: "-" if match.group(0) == "\\-" else "", text)
    return re.sub(r"(?m)^\.[A-Za-z]+ ?", "", text)


def man_documents():
    paths = find("/usr/share/man/man[1-8]/*.gz")
    return [man_page_text(path)[:12000] for path in random.sample(paths, min(MAN_PAGES, len(paths)))]


def html_text(path):
    text = re.sub(r"(?s)<(script|style).*?</\1>", "", read_text(path))
    text = re.sub(r"<[^>]+>", "", text)
    return re.sub(r"\n\s*\n+", "\n\n", html.unescape(text))


def debian_documents():
    paths = find(
        "/usr/share/doc/debian-handbook/html/en-US/**/*.html",
        "/usr/share/debian-reference/*.en.html",
        "/usr/share/doc/debian-handbook/**/en-US/*.html",
    )
    return [piece for path in paths for piece in pieces(html_text(path), 8000)]


def fortune_documents():
    paths = [path for path in find("/usr/share/games/fortunes/*") if not path.endswith((".dat", ".u8"))]
    return [cookie for path in paths for cookie in read_text(path).split("\n%\n")]


# Name, how to get the documents, and at how many characters to stop. The order matters: all share one random state.
SOURCES = [
    ("kjv", bible_documents, 5_000_000),
    ("gcide", lambda: dictionary_documents("gcide"), 14_000_000),
    ("wn", lambda: dictionary_documents("wn"), 8_000_000),
    ("foldoc", lambda: dictionary_documents("foldoc"), 5_000_000),
    ("jargon", lambda: dictionary_documents("jargon"), 2_000_000),
    (
        "python",
        lambda: file_documents(12000, "/usr/lib/python3.11/**/*.py", "/usr/lib/python3/dist-packages/**/*.py"),
        14_000_000,
    ),
    ("perl", lambda: file_documents(12000, "/usr/share/perl/**/*.pod", "/usr/share/perl/**/*.pm"), 5_000_000),
    ("chdr", lambda: file_documents(8000, "/usr/include/**/*.h"), 8_000_000),
    ("man", man_documents, 12_000_000),
    ("debdoc", debian_documents, 6_000_000),
    ("fortune", fortune_documents, 2_000_000),
]


def choose(documents, max_chars):
    """Documents in random order, short ones left out, until `max_chars` are passed."""
    random.shuffle(documents)
    chosen = []
    chars = 0
    for document in documents:
        document = document.strip()
        if len(document) < MIN_DOCUMENT_CHARS:
            continue
        chosen.append(document)
        chars += len(document)
        if chars > max_chars:
            break
    return chosen


def collect():
    documents = []
    for name, read, max_chars in SOURCES:
        chosen = choose(read(), max_chars)
        if chosen:
            print(f"{name}: {len(chosen)} documents, {sum(map(len, chosen))} characters")
        else:
            print(f"{name}: nothing found, left out")
        documents += [(name, text) for text in chosen]
    return documents


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path("data"), help="default: %(default)s")
    arguments = parser.parse_args()

    random.seed(SEED)
    documents = collect()
    if not documents:
        parser.error("no texts found: install the packages that ../README.md names")
    random.shuffle(documents)
    n_validation = max(1, len(documents) // VALIDATION_SHARE)
    parts = {"train": documents[n_validation:], "val": documents[:n_validation]}

    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    for part, texts in parts.items():
        text = "\n\n".join(text for _, text in texts)
        (arguments.output_dir / f"{part}.txt").write_text(text, encoding="utf-8")
        print(f"{part}: {len(texts)} documents, {len(text) / 1e6:.1f} million characters")
    (arguments.output_dir / "documents.json").write_text(json.dumps(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
