"""autopart.save: the file runs by plain TorchScript, equals the module, and describes itself."""

import json

import autopart
import pytest
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(16.0), persistent=False)

    def forward(self, ids, *, scale=1.0):
        return self.head(torch.relu(self.body(self.embed(ids) + self.table))) * scale


def cross_entropy(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def read(path):
    extra = {"autopart.json": ""}
    script = torch.jit.load(path, _extra_files=extra)
    return script, json.loads(extra["autopart.json"])


def test_saved_loss_equals_eager_and_the_file_says_what_its_inputs_are(tmp_path):
    torch.manual_seed(0)
    model, ids = Tied(), torch.randint(0, 50, (4, 7))
    path = tmp_path / "model.pt"
    autopart.save(model, ids, path, loss=cross_entropy, targets=ids.clone())
    script, spec = read(path)
    (loss,) = script(ids, ids)
    torch.testing.assert_close(loss, cross_entropy(model(ids), ids), rtol=0, atol=0)
    assert spec == {
        "version": 1,
        "inputs": [
            {"name": "ids", "dtype": "int64", "shape": [4, 7], "bound": 50, "batch_axis": 0},
            {"name": "targets", "dtype": "int64", "shape": [4, 7], "bound": 50, "batch_axis": 0},
        ],
        "loss": 0,
        "loss_is_sum": False,
        "training": True,
        "strip_prefix": "model.",
        "constants": ["table"],
    }


def test_shared_weights_stay_shared_in_the_file(tmp_path):
    autopart.save(Tied(), torch.zeros(1, 2, dtype=torch.long), tmp_path / "m.pt")
    state = read(tmp_path / "m.pt")[0].state_dict()
    shared = state["model.embed.weight"], state["model.head.weight"]
    assert shared[0].data_ptr() == shared[1].data_ptr()


def test_saving_leaves_generators_and_batch_norm_alone(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before, state = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    autopart.save(model, torch.randn(3, 4), tmp_path / "m.pt")
    torch.randn(3, 4)  # the generator was advanced by the example alone
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    torch.set_rng_state(before)
    autopart.save(model, torch.ones(3, 4), tmp_path / "m.pt")
    assert torch.equal(torch.get_rng_state(), before)


def test_keyword_inputs_and_the_models_own_loss(tmp_path):
    class WithLoss(Tied):
        def forward(self, ids, labels=None):
            logits = super().forward(ids)
            return {"loss": cross_entropy(logits, labels), "logits": logits}

    model, ids = WithLoss(), torch.randint(0, 50, (2, 3))
    example = {"ids": ids, "labels": ids.clone()}
    autopart.save(model, example, tmp_path / "m.pt", loss="loss")
    script, spec = read(tmp_path / "m.pt")
    assert [i["name"] for i in spec["inputs"]] == ["ids", "labels"]
    assert torch.equal(script(ids, ids)[0], model(ids, ids)["loss"])


def test_a_tensor_passed_twice_is_one_input(tmp_path):
    model, ids = Tied(), torch.randint(0, 50, (2, 3))
    autopart.save(model, ids, tmp_path / "m.pt", loss=cross_entropy, targets=ids)
    script, spec = read(tmp_path / "m.pt")
    assert [i["name"] for i in spec["inputs"]] == ["ids"]
    assert torch.equal(script(ids)[0], cross_entropy(model(ids), ids))


def test_without_loss_the_results_come_back(tmp_path):
    model, ids = Tied(), torch.randint(0, 50, (2, 3))
    autopart.save(model, ids, tmp_path / "m.pt")
    script, spec = read(tmp_path / "m.pt")
    assert spec["loss"] is None
    assert torch.equal(script(ids)[0], model(ids))


def test_targets_without_a_loss_are_refused(tmp_path):
    with pytest.raises(ValueError, match="targets were given without loss"):
        autopart.save(Tied(), torch.zeros(1, 2, dtype=torch.long), tmp_path / "m.pt", targets=1)


def test_index_bounds_follow_views_shifts_and_pads(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_embd=8, n_head=2, vocab_size=31, n_positions=16, use_cache=False
    )
    ids = torch.zeros(2, 5, dtype=torch.long)
    autopart.save(
        transformers.GPT2LMHeadModel(config),
        {"input_ids": ids, "labels": ids.clone()},
        tmp_path / "m.pt",
        loss="loss",
    )
    script, spec = read(tmp_path / "m.pt")
    assert [i["bound"] for i in spec["inputs"]] == [31, 31]
    script(ids, ids)  # no meta device is left in it
