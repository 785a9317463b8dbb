#!/usr/bin/env python3
"""Owns: the proof that llama-server says the same with Sluice as without, and survives impatient clients.

Runs the stock server three times on one model: alone, with the plug-in, and as `sluice serve`; compares the texts of
/completion and /v1/chat/completions (whole and streamed), then loads four slots at once while one client leaves half-way.
Only the Python standard library, only the loopback interface.
"""
import argparse
import contextlib
import gzip
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PROMPTS = ["In the beginning", "And the king said unto David,", "The name of the river is"]
N_PREDICT = 24
START_LIMIT_S = 120


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def server(command, env, log):
    """Starts a server and waits for it to be healthy (bounded); ends it however the block ends."""
    port = free_port()
    process = subprocess.Popen(command + ["--host", "127.0.0.1", "--port", str(port)], env={**os.environ, **env},
                               stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            if process.poll() is not None:
                raise AssertionError(f"the server ended with {process.returncode} while starting: {command}")
            try:
                status, _ = request(port, "GET", "/health")
                if status == 200:
                    break
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise AssertionError("the server did not start")
            time.sleep(0.05)
        yield port
        if process.poll() is not None:
            raise AssertionError(f"the server died with {process.returncode}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def request(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Accept-Encoding": "gzip"}  # the UI is served in no other form
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection.request(method, path, json.dumps(body) if body is not None else None, headers)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    if response.getheader("Content-Encoding") == "gzip":
        data = gzip.decompress(data)
    return response.status, data


def completion(port, prompt):
    status, data = request(port, "POST", "/completion",
                           {"prompt": prompt, "n_predict": N_PREDICT, "temperature": 0, "cache_prompt": False})
    assert status == 200, (status, data[:500])
    return json.loads(data)["content"]


def chat(port, prompt, stream):
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": N_PREDICT, "temperature": 0,
            "stream": stream, "cache_prompt": False}
    status, data = request(port, "POST", "/v1/chat/completions", body)
    assert status == 200, (status, data[:500])
    if not stream:
        return json.loads(data)["choices"][0]["message"]["content"]
    text = ""
    for line in data.decode().splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            choices = json.loads(line[6:])["choices"]
            if choices:
                text += choices[0]["delta"].get("content") or ""
    return text


def transcript(port):
    """What a client sees, in a fixed order and one at a time, so that batches are the same every time."""
    seen = {}
    for prompt in PROMPTS:
        seen["completion", prompt] = completion(port, prompt)
        seen["chat", prompt] = chat(port, prompt, stream=False)
        seen["chat stream", prompt] = chat(port, prompt, stream=True)
    return seen


def leave_half_way(port):
    """Asks for a long streamed answer and hangs up after the first bytes of it."""
    body = json.dumps({"prompt": PROMPTS[0], "n_predict": 400, "temperature": 0, "stream": True, "ignore_eos": True})
    with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
        s.sendall((f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                   f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
        s.recv(64)


def many_at_once(port):
    """Four slots busy, one client leaves: the other three get their answers."""
    answers = [None] * 3

    def ask(i):
        try:
            answers[i] = completion(port, PROMPTS[i])
        except Exception as e:  # reported below, by the thread that checks
            answers[i] = e

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)] + [threading.Thread(target=leave_half_way, args=(port,))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, answer in enumerate(answers):
        assert isinstance(answer, str) and answer, f"request {i} beside a leaving client got {answer!r}"


def truncated_meanwhile(port, copy, original, expected):
    """The model file is cut under the running server: that request fails in words, the next one is right again."""
    size = os.path.getsize(original)
    os.truncate(copy, size // 2)
    status, data = request(port, "POST", "/completion", {"prompt": PROMPTS[2] + " and then", "n_predict": 4,
                                                         "temperature": 0, "cache_prompt": False})
    assert status >= 400 and b"error" in data, f"a cut file gave {status} {data[:200]}"
    with open(original, "rb") as good, open(copy, "r+b") as bad:
        shutil.copyfileobj(good, bad)
    got = completion(port, PROMPTS[0])
    assert got == expected, f"after the file is whole again: {got!r} instead of {expected!r}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--cache-mb", required=True, help="small enough that experts are read all the time")
    args = parser.parse_args()

    work = tempfile.TemporaryDirectory()
    copy = os.path.join(work.name, "model.gguf")
    shutil.copyfile(args.model, copy)
    common = ["-m", copy, "-c", "2048", "-np", "4", "-t", "2", "--no-warmup"]
    with tempfile.TemporaryFile("w+") as log:
        try:
            os.environ.pop("GGML_BACKEND_PATH", None)
            with server([args.llama_server] + common, {}, log) as port:
                stock = transcript(port)
            assert any(stock.values()), "the stock server said nothing at all"
            for name, command, extra in [
                ("plug-in", [args.llama_server] + common, {"LD_PRELOAD": args.plugin, "SLUICE_CACHE_MB": args.cache_mb}),
                ("sluice serve", [args.sluice, "serve"] + common + ["--cache-mb", args.cache_mb], {}),
            ]:
                with server(command, extra, log) as port:
                    got = transcript(port)
                    for key, text in stock.items():
                        assert got[key] == text, f"{name}: {key}: {got[key]!r} instead of {text!r}"
                    many_at_once(port)
                    assert completion(port, PROMPTS[1]) == stock["completion", PROMPTS[1]], f"{name}: another text after the crowd"
                    truncated_meanwhile(port, copy, args.model, stock["completion", PROMPTS[0]])
                    status, page = request(port, "GET", "/")
                    assert status == 200 and b"<html" in page.lower(), f"{name}: no web UI ({status})"
                print(f"{name}: {len(stock)} answers equal to stock, survived four clients at once and a cut file")
            log.seek(0)
            text = log.read()
            assert "experts streamed" in text or "expert cache" in text, "the log does not show that Sluice was at work"
        except AssertionError as e:
            log.seek(0)
            print("\n".join(log.read().splitlines()[-40:]), file=sys.stderr)
            print(f"FAILED: {e}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
