"""Small float64 models, each with a batch and a loss, on which every path must equal one device.

zoo()[name]() -> Entry. The forward of every model takes the batch's tensors and returns the loss,
so that captures, steps and the one-device reference run the same thing. deep_zoo() has models that
are too large for the matrix over all plans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Entry:
    """A model whose forward(*inputs) is the mean loss over the batch's rows."""

    model: nn.Module
    make_inputs: Callable[[int, int], tuple[Tensor, ...]]  # (rows, seed)
    has_random: bool = False  # dropout: only a plan of the same graph compares


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _rows(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = _seeded(seed)
    return (
        torch.randn(rows, 8, dtype=torch.float64, generator=generator),
        torch.randn(rows, 4, dtype=torch.float64, generator=generator),
    )


class SkipMlp(nn.Module):
    """The first layer's output is used again three layers later: an edge that skips stages."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.d, self.e = nn.Linear(8, 8), nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        first = torch.tanh(self.a(x))
        h = F.gelu(self.b(first))
        h = F.relu(self.c(h))
        h = torch.sigmoid(self.d(h)) + first
        return F.mse_loss(self.e(torch.cat([h, first], 1)), y)


class Tied(nn.Module):
    """Embedding and head are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.LayerNorm(8))
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.middle(self.embed(ids)))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class BatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 6),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.Linear(6, 6),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.Linear(6, 4),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.layers(x), y)


class Dropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.GELU()) for _ in range(4)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.head(self.blocks(x)), y)


class EveryKind(nn.Module):
    """A bool mask, int64 ids, an int scalar and a tuple are made early and used late."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.table, self.head = nn.Embedding(5, 8), nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mask = x > 0
        ids = (x.sum(1) * 7).long().remainder(5)
        rows = x.size(0)
        pair = self.a(x).chunk(2, 1)
        h = torch.tanh(self.b(torch.cat([pair[1], pair[0]], 1)))
        h = torch.where(mask, self.c(h), torch.zeros_like(h)) + self.table(ids)
        h = torch.cat([h.reshape(rows, -1), pair[0], pair[1]], 1)
        return F.mse_loss(self.head(h), y)


class ConvNet(nn.Module):
    """Residual convolutions with batch norm, in-place relu and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.block = nn.Conv2d(4, 4, 3, padding="same")
        self.down, self.skip = nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(4, 8, 1, 2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = F.relu(self.norm(self.stem(x.view(-1, 1, 2, 4))), inplace=True)
        h = F.relu(self.block(h) + h)
        h = F.relu(self.down(h) + self.skip(h))
        return F.mse_loss(self.head(F.adaptive_avg_pool2d(h, 1).flatten(1)), y)


class Recurrent(nn.Module):
    """nn.LSTM holds weak references to its weights; one weight has two names in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.lstm = nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.weight = nn.Parameter(torch.randn(12, 12))
        self.same_weight = self.weight
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, _ = self.lstm(self.a(x).view(-1, 2, 4))
        h = torch.tanh(h @ self.weight)
        return F.mse_loss(self.head((h @ self.same_weight).mean(1)), y)


def _token_rows(rows: int, seed: int, vocabulary: int, length: int) -> tuple[Tensor, Tensor]:
    generator = _seeded(seed)
    ids = torch.randint(vocabulary, (rows, length), generator=generator)
    return ids, torch.randint(vocabulary, (rows, length), generator=generator)


class _LanguageModel(nn.Module):
    """A transformers model with token cross entropy over all positions."""

    def __init__(self, model: nn.Module, vocabulary: int, decoder: bool = False) -> None:
        super().__init__()
        self.model, self.vocabulary, self.decoder = model, vocabulary, decoder

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        extra = {"decoder_input_ids": labels} if self.decoder else {}
        logits = self.model(input_ids=ids, use_cache=False, **extra).logits
        return F.cross_entropy(logits.reshape(-1, self.vocabulary), labels.reshape(-1))


def _transformers(kind: str, layers: int = 2, dropout: float = 0.0) -> nn.Module:
    import transformers as t

    if kind == "gpt2":
        config = t.GPT2Config(
            vocab_size=40,
            n_positions=16,
            n_embd=32,
            n_layer=layers,
            n_head=4,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
        )
        return t.GPT2LMHeadModel(config)
    if kind == "llama":
        return t.LlamaForCausalLM(
            t.LlamaConfig(
                vocab_size=40,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=layers,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=16,
            )
        )
    if kind == "gemma2":
        return t.Gemma2ForCausalLM(
            t.Gemma2Config(
                vocab_size=40,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=layers,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                max_position_embeddings=16,
            )
        )
    if kind == "bert":
        return _Bert(
            t.BertForMaskedLM(
                t.BertConfig(
                    vocab_size=40,
                    hidden_size=32,
                    intermediate_size=48,
                    num_hidden_layers=layers,
                    num_attention_heads=4,
                    max_position_embeddings=16,
                    hidden_dropout_prob=dropout,
                    attention_probs_dropout_prob=dropout,
                )
            )
        )
    return t.T5ForConditionalGeneration(
        t.T5Config(
            vocab_size=40,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=layers,
            num_heads=4,
            dropout_rate=dropout,
            decoder_start_token_id=0,
        )
    )


class _Bert(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.bert = model

    def forward(self, input_ids: Tensor, use_cache: bool = False):
        return self.bert(input_ids=input_ids)


def _simple(build: Callable[[], nn.Module], make_inputs, has_random=False) -> Callable[[], Entry]:
    def make() -> Entry:
        torch.manual_seed(0)
        return Entry(build().double().train(), make_inputs, has_random)

    return make


def _tokens(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    return _token_rows(rows, seed, vocabulary=20, length=5)


def _long_tokens(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    return _token_rows(rows, seed, vocabulary=40, length=8)


def _language(kind: str, layers: int = 2, dropout: float = 0.0) -> Callable[[], Entry]:
    return _simple(
        lambda: _LanguageModel(_transformers(kind, layers, dropout), 40, kind == "t5"),
        _long_tokens,
        has_random=dropout > 0,
    )


def zoo() -> dict[str, Callable[[], Entry]]:
    return {
        "skip_mlp": _simple(SkipMlp, _rows),
        "tied": _simple(Tied, _tokens),
        "batch_norm": _simple(BatchNorm, _rows),
        "dropout": _simple(Dropout, _rows, has_random=True),
        "every_kind": _simple(EveryKind, _rows),
        "conv_net": _simple(ConvNet, _rows),
        "recurrent": _simple(Recurrent, _rows),
        "gpt2": _language("gpt2"),
        "llama": _language("llama"),
        "bert": _language("bert"),
        "t5": _language("t5"),
    }


def deep_zoo() -> dict[str, Callable[[], Entry]]:
    kinds = ("gpt2", "llama", "gemma2", "bert", "t5")
    four = {f"{kind}_of_4_layers": _language(kind, layers=4) for kind in kinds}
    return four | {"gpt2_dropout": _language("gpt2", dropout=0.1)}


def make_entry(name: str) -> Entry:
    return (zoo() | deep_zoo())[name]()
