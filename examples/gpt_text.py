"""What the two training scripts share: text, model, command line and the log of a run."""

import argparse
import json
import os
import time
from pydoc_data import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel

CONTEXT = 128


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--plan", help="plan to train by (default: plan at the first step)")
    parser.add_argument("--record", help="write losses and step times as JSON")
    parser.add_argument("--checkpoint", help="write the trained parameters")
    return parser.parse_args()


def build_model(dropout: float) -> GPT2LMHeadModel:
    """A byte-level GPT-2: 4 layers, hidden 128, tied head."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256,
            n_positions=CONTEXT,
            n_embd=128,
            n_layer=4,
            n_head=4,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
            loss_type="ForCausalLM",
        )
    )


def batches(steps: int, batch: int):
    """Random windows of the text that every Python carries: pydoc's topics, 0.46 MB."""
    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        starts = torch.randint(len(data) - CONTEXT, (batch,), generator=generator)
        ids = torch.stack([data[s : s + CONTEXT] for s in starts])
        yield ids, ids  # GPT-2 shifts the labels itself


class Log:
    """Losses and step times of a run; rank 0 prints every tenth step and writes the files."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.quiet = args, int(os.environ.get("RANK", 0)) != 0
        self.losses: list[float] = []
        self.step_ms: list[float] = []
        self.start = time.perf_counter()

    def step(self, loss: float) -> None:
        now = time.perf_counter()
        self.losses.append(loss)
        self.step_ms.append((now - self.start) * 1000)
        self.start = now
        if not self.quiet and (len(self.losses) % 10 == 1):
            print(f"step {len(self.losses):4d}  loss {loss:.4f}", flush=True)

    def write(self, state: dict[str, torch.Tensor]) -> None:
        if self.quiet:
            return
        if self.args.record:
            with open(self.args.record, "w") as file:
                json.dump({"losses": self.losses, "step_ms": self.step_ms}, file)
        if self.args.checkpoint:
            torch.save(state, self.args.checkpoint)
