"""Writes the model files of the profiler's tests: NAME.pt, with example inputs and outputs.

Each case is NAME -> (module, inputs, how), how being trace or script. Beside NAME.pt stands
NAME.io.pt, a TorchScript file whose forward() returns a list of tensors: inputs, then outputs of
the module's own forward, so that C++ can read both without Python.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
F = nn.functional


class SkipMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.mid = nn.Linear(16, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        return self.out(torch.relu(self.mid(h)) + h)


class TiedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, labels):
        logits = self.head(torch.relu(self.body(self.embed(ids))))
        return F.cross_entropy(logits.view(-1, 50), labels.view(-1)), logits


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.unused = nn.Linear(2, 2)
        self.out = nn.Linear(4, 5)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3)))


class Dropped(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.drop = nn.Dropout(p)
        self.b = nn.Linear(8, 8)
        self.drop2d = nn.Dropout2d(p)

    def forward(self, x):
        h = self.drop(torch.relu(self.a(x)))
        h = self.drop(self.b(h))
        return self.drop2d(h[:, :, None, None].expand(-1, -1, 2, 2)).sum(dim=(2, 3))


class Attention(nn.Module):
    def __init__(self, p, causal):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.p, self.causal = p, causal

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, 4, c // 4).transpose(1, 2) for y in self.qkv(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class ControlFlow(nn.Module):
    def __init__(self):
        super().__init__()
        self.l0 = nn.Linear(6, 6)
        self.l1 = nn.Linear(6, 6)
        self.l2 = nn.Linear(6, 6)
        self.l3 = nn.Linear(6, 6)
        self.l4 = nn.Linear(6, 3)

    def forward(self, x):
        h = self.l0(x)
        if bool(h.sum() > 0):  # noqa: SIM108 - a branch in the graph
            h = self.l1(h)
        else:
            h = self.l2(h)
        for i in range(3):
            h = torch.relu(self.l3(h)) + i
        return self.l4(h)


class Appends(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        y = self.l(x)
        parts = [x]
        if bool(y.sum() > 0):
            parts.append(y)
        for i in range(x.size(0)):
            parts.append(y[i : i + 1] * 2)
        return torch.cat(parts, 0)


class Structures(nn.Module):
    """Lists, tuples, a bool mask, integers and a dictionary of results."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(4, 8)

    def pair(self, x):
        return x.chunk(2, -1), x > 0

    def forward(self, x):
        n = x.size(0)
        h = self.a(x)
        (left, right), mask = self.pair(h)
        merged = torch.cat([left, right, left], 1).reshape(n, -1, 4)
        y = self.b(merged).sum(1)
        y = torch.where(mask, y, torch.zeros(1))
        return {"y": y, "ids": torch.arange(n), "right": right}


class WritesInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(10, 10)
        self.register_buffer("idx", torch.tensor([1, 3, 5]))

    def forward(self, x):
        c = torch.zeros(x.size(0), 10)
        c[:, self.idx] = self.lin(x)[:, self.idx]
        d = F.relu(self.lin(c), inplace=True)
        d += x
        return d, c.sum()


class Alias(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))
        self.alias = self.w

    def forward(self, x):
        return x @ self.w + x @ self.alias


class Detector(nn.Module):
    """Scripted in the manner of public speech models: checks, strings, optional and two rates."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 16, stride=8)
        self.low = nn.LSTMCell(8, 8)
        self.high = nn.LSTMCell(8, 8)
        self.out = nn.Linear(8, 1)
        self.sizes = {16000: 512, 8000: 256}

    def check(self, x, rate: int):
        if x.dim() == 1:
            x = x.unsqueeze(0)
        if x.dim() > 2:
            raise ValueError(f"Too many dimensions for input audio chunk {x.dim()}")
        if rate not in [8000, 16000]:
            raise ValueError("unsupported rate")
        return x, rate

    def forward(self, x, rate: int, state: torch.Tensor | None = None):
        x, rate = self.check(x, rate)
        num = 512 if rate == 16000 else 256
        if x.shape[-1] != num:
            raise ValueError(f"Provided number of samples is {x.shape[-1]}")
        h = torch.relu(self.conv(x.unsqueeze(1))).mean(-1)
        if state is None:
            state = torch.zeros(h.size(0), 8, device=h.device, dtype=h.dtype)
        if rate == 16000:
            h, c = self.high(h, (state, state))
        else:
            h, c = self.low(h, (state, state))
        return torch.sigmoid(self.out(h + c))


class Repeats(nn.Module):
    """A number that comes as an argument decides sizes; most other numbers are wrong ones."""

    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 8)
        self.out = nn.Linear(8, 4)

    def forward(self, x, times: int, scale: float):
        rows = 8 // (times - 1)
        h = torch.relu(self.inp(x)).repeat(rows, times)
        return self.out(h.reshape(-1, 8)) * scale


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2)
        self.out = nn.Linear(6, 2)

    def forward(self, x):
        y, _ = self.lstm(x)
        return self.out(y) + torch.zeros(1, device=x.device)


def transformers_cases():
    import transformers as tr

    class Causal(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids, labels):
            out = self.model(input_ids=ids, labels=labels, use_cache=False)
            return out.loss, out.logits

    class Seq2Seq(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids, labels):
            out = self.model(input_ids=ids, labels=labels, use_cache=False)
            return out.loss, out.logits

    class Vision(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x, labels):
            out = self.model(pixel_values=x, labels=labels)
            return out.loss, out.logits

    small = dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    decoder = dict(
        small, num_key_value_heads=2, intermediate_size=64, head_dim=8, max_position_embeddings=64
    )
    ids = torch.randint(0, 99, (2, 12))
    text = (ids, ids.clone())
    yield (
        "gpt2",
        Causal(
            tr.GPT2LMHeadModel(
                tr.GPT2Config(vocab_size=99, n_positions=64, n_embd=32, n_layer=2, n_head=4)
            )
        ),
        text,
    )
    yield "llama", Causal(tr.LlamaForCausalLM(tr.LlamaConfig(**decoder))), text
    yield "bert", Causal(tr.BertForMaskedLM(tr.BertConfig(**small, intermediate_size=64))), text
    yield (
        "t5",
        Seq2Seq(
            tr.T5ForConditionalGeneration(
                tr.T5Config(
                    vocab_size=99,
                    d_model=32,
                    d_kv=8,
                    d_ff=64,
                    num_layers=2,
                    num_heads=4,
                    decoder_start_token_id=0,
                )
            )
        ),
        text,
    )
    yield "gemma2", Causal(tr.Gemma2ForCausalLM(tr.Gemma2Config(**decoder))), text
    yield (
        "bart",
        Seq2Seq(
            tr.BartForConditionalGeneration(
                tr.BartConfig(
                    vocab_size=99,
                    d_model=32,
                    encoder_layers=2,
                    decoder_layers=2,
                    encoder_attention_heads=4,
                    decoder_attention_heads=4,
                    encoder_ffn_dim=64,
                    decoder_ffn_dim=64,
                    max_position_embeddings=64,
                )
            )
        ),
        text,
    )
    yield (
        "vit",
        Vision(
            tr.ViTForImageClassification(
                tr.ViTConfig(
                    hidden_size=32,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    intermediate_size=64,
                    image_size=16,
                    patch_size=4,
                    num_labels=5,
                )
            )
        ),
        (torch.randn(2, 3, 16, 16), torch.tensor([1, 3])),
    )
    yield (
        "mixtral",
        Causal(tr.MixtralForCausalLM(tr.MixtralConfig(**decoder, num_local_experts=4))),
        text,
    )
    yield "qwen3", Causal(tr.Qwen3ForCausalLM(tr.Qwen3Config(**decoder))), text


def flatten(value):
    if isinstance(value, torch.Tensor):
        return [value.detach()]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [t for item in value for t in flatten(item)]
    return []


class Holder(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.inputs: list[torch.Tensor] = inputs
        self.outputs: list[torch.Tensor] = outputs

    def forward(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return self.inputs, self.outputs


def describe(value):
    if not isinstance(value, torch.Tensor):
        return {"value": value}
    spec = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    if value.dtype == torch.int64:
        spec["bound"] = int(value.max()) + 1
    return spec


def write(folder, name, module, inputs, how, loss=None, prefix="", constants=()):
    if how == "script":
        made = torch.jit.script(module)
    elif how == "freeze":
        made = torch.jit.freeze(torch.jit.script(module.eval()))
    else:
        made = torch.jit.trace(module, inputs, check_trace=False, strict=False)
    meta = {
        "version": 1,
        "inputs": [describe(x) for x in inputs],
        "loss": loss,
        "training": module.training,
        "strip_prefix": prefix,
        "constants": list(constants),
    }
    path = str(folder / f"{name}.pt")
    made.save(path, _extra_files={"autopart.json": json.dumps(meta)})
    # Outputs of the file as it is loaded, from its first state: statistics move.
    with torch.no_grad():
        outputs = flatten(torch.jit.load(path)(*inputs))
    tensors = [x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in inputs]
    torch.jit.script(Holder(tensors, outputs)).save(str(folder / f"{name}.io.pt"))


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    x8 = torch.randn(3, 8)
    ids = torch.randint(0, 50, (2, 7))
    write(folder, "skip_mlp", SkipMlp(), (x8,), "trace")
    write(folder, "tied_head", TiedHead(), (ids, ids.clone()), "trace", loss=0)
    write(folder, "normed", Normed(), (torch.randn(4, 3, 6, 6),), "trace")
    write(folder, "normed_eval", Normed().eval(), (torch.randn(4, 3, 6, 6),), "trace")
    write(folder, "normed_scripted", Normed(), (torch.randn(4, 3, 6, 6),), "script")
    write(folder, "dropped_eval", Dropped(0.3).eval(), (x8,), "trace")
    write(folder, "dropped", Dropped(0.3), (x8,), "trace")
    write(folder, "dropped_scripted", Dropped(0.3), (x8,), "script")
    write(folder, "attention", Attention(0.0, False), (torch.randn(2, 5, 16),), "trace")
    write(folder, "attention_causal", Attention(0.0, True), (torch.randn(2, 5, 16),), "trace")
    write(folder, "attention_dropout", Attention(0.2, True), (torch.randn(2, 5, 16),), "trace")
    write(folder, "control_flow", ControlFlow(), (torch.randn(3, 6),), "script")
    write(folder, "appends", Appends(), (torch.randn(3, 4),), "script")
    write(folder, "structures", Structures(), (x8,), "trace")
    write(folder, "structures_scripted", StructuresScripted(), (x8,), "script")
    write(folder, "in_place", WritesInPlace(), (torch.randn(3, 10),), "trace")
    write(folder, "alias", Alias(), (torch.randn(3, 4),), "script")
    write(folder, "detector", Detector(), (torch.randn(2, 512), 16000), "script")
    write(folder, "repeats", Repeats(), (x8, 3, 2.0), "script")
    write(folder, "recurrent", Recurrent(), (torch.randn(5, 3, 4),), "trace")
    frozen = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    write(folder, "frozen", frozen, (x8,), "freeze")
    for name, module, inputs in transformers_cases():
        write(folder, name, module.eval(), inputs, "trace", loss=0, prefix="model.")
    for name, module, inputs in transformers_cases():
        if name in ("gpt2", "bert"):
            write(folder, f"{name}_train", module.train(), inputs, "trace", loss=0, prefix="model.")
    (folder / "done").touch()


class StructuresScripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x):
        h = self.a(x)
        parts = torch.split(h, 4, dim=1)
        state = (h, x.size(0))
        scaled: list[torch.Tensor] = []
        for part in parts:
            scaled.append(part * state[1])
        total = torch.stack(scaled).sum(0)
        flag = total.dtype == torch.float32
        if flag:
            total = total + 1
        return total, state[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
