#!/usr/bin/env python3
"""Trains the demo model: a small Mixture-of-Experts transformer in the shape of llama.cpp's qwen3moe.

Uses a GPU when there is one, else two CPU threads. The learning rate follows a cosine over --steps or --minutes,
whichever is nearer its end, so on the CPU the schedule depends on how fast the machine is.
"""
import argparse
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="where encode_corpus.py wrote")
    parser.add_argument("--data", default="train", help="token file to train with, without .bin")
    parser.add_argument("--validation", default="val", help="token file to validate with, without .bin")
    parser.add_argument("--output", type=Path, default=Path("checkpoint.pt"), help="checkpoint to write")
    parser.add_argument("--init", type=Path, help="checkpoint to begin with")
    parser.add_argument("--keep-optimizer", action="store_true", help="take the optimizer's state from --init too")
    parser.add_argument("--resume", action="store_true", help="go on from --output if it exists")
    parser.add_argument("--batch-size", type=int, default=8, help="sequences per step")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="the highest one")
    parser.add_argument("--balance-weight", type=float, default=0.01, help="of the loss that balances the experts' load")
    parser.add_argument("--steps", type=int, default=6000, help="length of the schedule")
    parser.add_argument("--minutes", type=float, default=90, help="length of the schedule in time")
    parser.add_argument("--stop-step", type=int, help="stop here although the schedule goes on")
    return parser.parse_args()


# Before the heavy imports, so that --help needs none of them.
ARGUMENTS = parse_arguments() if __name__ == "__main__" else None

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402


@dataclass(frozen=True)
class Geometry:
    vocabulary: int = 4096
    width: int = 256
    layers: int = 8
    heads: int = 8
    kv_heads: int = 2
    head_width: int = 32
    experts: int = 64
    experts_used: int = 4
    expert_width: int = 128
    context: int = 256  # of training; rotary positions let the model go on a little further
    rope_base: float = 10000.0


NORM_EPSILON = 1e-6
# An expert takes at most this many times its fair share of a batch's tokens; the rest of its tokens skip it.
CAPACITY_FACTOR = 2.0

WEIGHT_DECAY = 0.1
ADAM_BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 1.0
WARM_UP_STEPS = 100
LAST_LEARNING_RATE = 0.05  # as a share of the highest one

LOG_EVERY = 20
VALIDATE_EVERY = 200
SILENCE_SECONDS = 600  # a machine this slow validates and saves more often
VALIDATION_BATCH = 8
VALIDATION_SEQUENCES = 64


def scaled_normal(*shape, fan_in, scale=1.0):
    return nn.Parameter(torch.randn(*shape) * scale / math.sqrt(fan_in))


class Linear(nn.Module):
    """Without bias; multiplies in bfloat16."""

    def __init__(self, n_in, n_out, scale=1.0):
        super().__init__()
        self.weight = scaled_normal(n_in, n_out, fan_in=n_in, scale=scale)

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        product = (rows.bfloat16() @ self.weight.bfloat16()).float()
        return product.reshape(*x.shape[:-1], -1)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPSILON) * self.gain


class RotaryPositions(nn.Module):
    """Rotates the two halves of a head against each other, as llama.cpp's NEOX form does."""

    def __init__(self, g):
        super().__init__()
        frequencies = 1.0 / (g.rope_base ** (torch.arange(0, g.head_width, 2).float() / g.head_width))
        angles = torch.outer(torch.arange(g.context).float(), frequencies)
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        n = x.shape[-2]
        first, second = x.chunk(2, -1)
        return x * self.cos[:n] + torch.cat([-second, first], -1) * self.sin[:n]


class Attention(nn.Module):
    """Causal, with grouped key/value heads and normalised queries and keys."""

    def __init__(self, g):
        super().__init__()
        self.g = g
        self.query = Linear(g.width, g.heads * g.head_width)
        self.key = Linear(g.width, g.kv_heads * g.head_width)
        self.value = Linear(g.width, g.kv_heads * g.head_width)
        self.output = Linear(g.heads * g.head_width, g.width, scale=0.5 / math.sqrt(g.layers))
        self.query_norm = RmsNorm(g.head_width)
        self.key_norm = RmsNorm(g.head_width)
        self.positions = RotaryPositions(g)
        mask = torch.full((g.context, g.context), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        g = self.g
        batch, n, _ = x.shape
        query = self.query_norm(self.query(x).view(batch, n, g.heads, g.head_width)).transpose(1, 2)
        key = self.key_norm(self.key(x).view(batch, n, g.kv_heads, g.head_width)).transpose(1, 2)
        value = self.value(x).view(batch, n, g.kv_heads, g.head_width).transpose(1, 2)
        query = self.positions(query)
        key = self.positions(key)
        key = key.repeat_interleave(g.heads // g.kv_heads, 1)
        value = value.repeat_interleave(g.heads // g.kv_heads, 1)
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(g.head_width) + self.mask[:n, :n]
        mixed = torch.matmul(scores.softmax(-1), value)
        return self.output(mixed.transpose(1, 2).reshape(batch, n, g.heads * g.head_width))


@dataclass
class Routing:
    """What one layer's router did with a batch, for the log."""

    load: torch.Tensor  # tokens per expert, before capacity
    kept: torch.Tensor  # share of choices that fitted the experts' capacity


class Experts(nn.Module):
    """A router and its gated experts. Each expert computes a padded block of rows, so that one batched product serves
    all of them."""

    def __init__(self, g):
        super().__init__()
        self.g = g
        self.router = nn.Parameter(torch.randn(g.width, g.experts) * 0.02)
        self.gate = scaled_normal(g.experts, g.width, g.expert_width, fan_in=g.width)
        self.up = scaled_normal(g.experts, g.width, g.expert_width, fan_in=g.width)
        down = torch.randn(g.experts, g.expert_width, g.width) / math.sqrt(g.expert_width)
        self.down = nn.Parameter(down * 0.5 / math.sqrt(g.layers))

    def forward(self, x):
        """Rows of tokens in; their outputs, the balance loss and the Routing out."""
        g = self.g
        n_choices = x.shape[0] * g.experts_used
        probabilities = (x @ self.router).softmax(-1)
        weights, chosen = probabilities.topk(g.experts_used, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        chosen = chosen.reshape(-1)

        # The balance loss is least when every expert gets the same share of choices and of probability.
        share = torch.zeros(g.experts, device=x.device)
        share = share.scatter_add_(0, chosen, torch.ones(n_choices, device=x.device)) / n_choices
        balance_loss = g.experts * (share * probabilities.mean(0)).sum()

        # Sort the choices by expert and give each a place in its expert's block.
        capacity = int(math.ceil(n_choices / g.experts * CAPACITY_FACTOR))
        order = torch.argsort(chosen, stable=True)
        expert_of = chosen[order]
        load = torch.bincount(chosen, minlength=g.experts)
        first = load.cumsum(0) - load
        place = torch.arange(n_choices, device=x.device) - first[expert_of]
        fits = place < capacity
        token = (order // g.experts_used)[fits]
        slot = expert_of[fits] * capacity + place[fits]

        blocks = torch.zeros(g.experts * capacity, g.width, dtype=torch.bfloat16, device=x.device)
        blocks = blocks.index_copy(0, slot, x.bfloat16()[token]).view(g.experts, capacity, g.width)
        hidden = F.silu(torch.bmm(blocks, self.gate.bfloat16())) * torch.bmm(blocks, self.up.bfloat16())
        results = torch.bmm(hidden, self.down.bfloat16()).view(g.experts * capacity, g.width)
        results = results[slot].float() * weights.reshape(-1)[order][fits].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, token, results), balance_loss, Routing(load, fits.float().mean())


class Block(nn.Module):
    def __init__(self, g):
        super().__init__()
        # Made in the order in which they draw from the random generator, registered in that of the optimizer's state.
        attention = Attention(g)
        self.experts = Experts(g)
        self.attention_norm = RmsNorm(g.width)
        self.experts_norm = RmsNorm(g.width)
        self.attention = attention

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        rows = self.experts_norm(x).reshape(-1, x.shape[-1])
        y, balance_loss, routing = self.experts(rows)
        return x + y.view(x.shape), balance_loss, routing


class DemoModel(nn.Module):
    def __init__(self, g):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(g.vocabulary, g.width) * 0.02 * 4)
        self.blocks = nn.ModuleList([Block(g) for _ in range(g.layers)])
        self.norm = RmsNorm(g.width)
        self.head = Linear(g.width, g.vocabulary)

    def forward(self, tokens):
        """Logits, the mean balance loss over layers, and each layer's Routing."""
        x = self.embedding[tokens]
        balance_loss = 0
        routings = []
        for block in self.blocks:
            x, block_loss, routing = block(x)
            balance_loss = balance_loss + block_loss
            routings.append(routing)
        return self.head(self.norm(x)), balance_loss / len(self.blocks), routings


def make_optimizer(model, learning_rate):
    """AdamW; matrices decay, vectors and the embedding do not."""
    decaying = []
    other = []
    for name, parameter in model.named_parameters():
        (decaying if parameter.dim() > 1 and name != "embedding" else other).append(parameter)
    groups = [{"params": decaying, "weight_decay": WEIGHT_DECAY}, {"params": other, "weight_decay": 0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=ADAM_BETAS)


class TokenFile:
    def __init__(self, path, context, device):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.context = context
        self.device = device
        if len(self.tokens) <= context * VALIDATION_BATCH:
            raise SystemExit(f"{path} holds {len(self.tokens)} tokens, too few to train or validate with")

    def sequences(self, starts):
        """Inputs and the tokens that follow them, one row per start."""
        rows = np.stack([self.tokens[i : i + self.context + 1] for i in starts]).astype(np.int64)
        rows = torch.from_numpy(rows).to(self.device)
        return rows[:, :-1], rows[:, 1:]

    def random_sequences(self, random_state, n):
        return self.sequences(random_state.randint(0, len(self.tokens) - self.context - 1, n))

    def validation_batches(self):
        stride = self.context * VALIDATION_BATCH
        for begin in range(0, min(len(self.tokens) - stride, self.context * VALIDATION_SEQUENCES), stride):
            yield self.sequences([begin + row * self.context for row in range(VALIDATION_BATCH)])


def prediction_loss(logits, targets):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def validate(model, data):
    """Mean loss, and the last batch's routing."""
    model.eval()
    losses = []
    routings = []
    with torch.no_grad():
        for inputs, targets in data.validation_batches():
            logits, _, routings = model(inputs)
            losses.append(prediction_loss(logits, targets).item())
    model.train()
    return sum(losses) / len(losses), routings


def save_checkpoint(path, model, optimizer, step, geometry):
    partial = path.with_name(path.name + ".tmp")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "geometry": asdict(geometry)}
    torch.save(state, partial)
    os.replace(partial, path)


def learning_rate_at(step, progress, highest):
    warm_up = min(1, (step + 1) / WARM_UP_STEPS)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return highest * warm_up * (LAST_LEARNING_RATE + (1 - LAST_LEARNING_RATE) * cosine)


def train(arguments, geometry):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(2)
    torch.manual_seed(1)
    model = DemoModel(geometry).to(device)
    print(f"{geometry}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters")
    training = TokenFile(arguments.data_dir / f"{arguments.data}.bin", geometry.context, device)
    validation = TokenFile(arguments.data_dir / f"{arguments.validation}.bin", geometry.context, device)
    optimizer = make_optimizer(model, arguments.learning_rate)

    first_step = 0
    if arguments.init:
        state = torch.load(arguments.init, map_location=device)
        model.load_state_dict(state["model"])
        if arguments.keep_optimizer:
            optimizer.load_state_dict(state["optimizer"])
    if arguments.resume and arguments.output.exists():
        state = torch.load(arguments.output, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step = state["step"]

    random_state = np.random.RandomState(0)
    started = time.time()
    last_log = started
    step = first_step
    while arguments.stop_step is None or step < arguments.stop_step:
        minutes = (time.time() - started) / 60
        progress = max(step / arguments.steps, minutes / arguments.minutes)
        if progress >= 1:
            break
        learning_rate = learning_rate_at(step, progress, arguments.learning_rate)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate

        inputs, targets = training.random_sequences(random_state, arguments.batch_size)
        logits, balance_loss, routings = model(inputs)
        loss = prediction_loss(logits, targets)
        optimizer.zero_grad(set_to_none=True)
        (loss + arguments.balance_weight * balance_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()

        if step % LOG_EVERY == 0:
            tokens = arguments.batch_size * geometry.context * LOG_EVERY
            kept = np.mean([routing.kept.item() for routing in routings])
            print(
                f"{step} {minutes:.1f} min, loss {loss.item():.3f}, balance {balance_loss.item():.3f}, kept {kept:.3f}, "
                f"rate {learning_rate:.5f}, {tokens / max(1e-9, time.time() - last_log):.0f} tok/s",
                flush=True,
            )
            last_log = time.time()
        step += 1
        if step % VALIDATE_EVERY == 0 or time.time() - last_log > SILENCE_SECONDS:
            validation_loss, routings = validate(model, validation)
            peaks = [round((r.load.max() / r.load.float().mean()).item(), 2) for r in routings]
            print(f"validation loss {validation_loss:.3f}, highest load over mean {peaks}", flush=True)
            save_checkpoint(arguments.output, model, optimizer, step, geometry)
            last_log = time.time()

    print(f"final validation loss {validate(model, validation)[0]:.3f}")
    save_checkpoint(arguments.output, model, optimizer, step, geometry)


if __name__ == "__main__":
    train(ARGUMENTS, Geometry())
