"""autopart.capture: the graph of a model that is never in memory is that of the real one."""

import json
import resource
import subprocess
import warnings
from pathlib import Path

import autopart
import pytest
import torch
from autopart import _core
from autopart.plan import import_model
from torch import nn

COMMAND = Path(__file__).resolve().parents[2] / "build" / "release" / "runtime" / "cli" / "autopart"


def cross_entropy(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(width=16):
    model = nn.Sequential(nn.Embedding(50, width), nn.Linear(width, 50))
    ids = torch.zeros(2, 7, dtype=torch.long)
    return model, ids, cross_entropy, ids


def parameter_dtypes(captured):
    return {p.dtype for p in captured.graph.parameters}


def test_a_captured_model_says_what_it_is_and_keeps_that_in_its_file(tmp_path):
    captured = autopart.capture(build)
    assert captured.name == "Sequential"
    assert captured.num_parameters == 50 * 16 + 16 * 50 + 50
    assert captured.parameter_bytes == 4 * captured.num_parameters
    assert captured.num_operators == captured.graph.num_nodes > 2
    size = captured.save(tmp_path / "m.graph.json")
    text = (tmp_path / "m.graph.json").read_text()
    assert len(text) == size
    assert _core.OpGraph.from_json(text).hash == captured.graph.hash


def test_the_graph_is_that_of_the_real_model():
    model, ids, loss, targets = build()
    real = import_model(model, ids, loss, targets, False)
    assert autopart.capture(build).graph.to_json() == real.graph.to_json()


def test_no_parameter_is_allocated():
    def large():
        model = nn.Sequential(*[nn.Linear(60_000, 60_000) for _ in range(4)])  # 58 GB
        return model, torch.zeros(1, 60_000)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured = autopart.capture(large)
    assert captured.num_parameters == 4 * (60_000**2 + 60_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_a_module_on_a_real_device_is_captured_and_left_alone():
    model, ids, loss, _ = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    real_ids = torch.ones_like(ids)
    captured = autopart.capture(lambda: (model, real_ids), loss=loss, targets=real_ids)
    assert captured.graph.loss_output == 0
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert not any(p.is_meta for p in model.parameters())


def test_the_loss_may_come_from_build_model_or_from_the_caller():
    def without():
        return build()[:2]

    assert autopart.capture(without).graph.loss_output is None
    targets = torch.zeros(2, 7, dtype=torch.long)
    given = autopart.capture(without, loss=cross_entropy, targets=targets)
    # Here the targets are an input of their own, in build they are the ids.
    assert (given.graph.num_inputs, autopart.capture(build).graph.num_inputs) == (2, 1)


def test_a_loss_in_both_places_is_refused():
    with pytest.raises(ValueError, match=r"build\(\) returns a loss and loss= gives one"):
        autopart.capture(build, loss=cross_entropy)


def test_the_default_dtype_that_build_model_sets_counts_and_is_undone():
    def half():
        torch.set_default_dtype(torch.bfloat16)
        return build()

    captured = autopart.capture(half)
    assert parameter_dtypes(captured) == {torch.bfloat16}
    assert captured.parameter_bytes == 2 * captured.num_parameters
    assert torch.get_default_dtype() == torch.float32


def test_the_default_dtype_is_undone_where_build_model_fails():
    def half():
        torch.set_default_dtype(torch.float16)
        raise KeyError("layers")

    with pytest.raises(KeyError):
        autopart.capture(half)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_module_converted_to_half_precision_is_captured_in_it(dtype):
    def half():
        model, *rest = build()
        return model.to(dtype), *rest

    assert parameter_dtypes(autopart.capture(half)) == {dtype}


def test_what_cannot_be_called_is_refused_with_what_to_pass():
    with pytest.raises(TypeError, match=r"not a Linear: .* pass lambda: \(module, example_inputs"):
        autopart.capture(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (None, r"wrong\(\) returned None; it must return \(module, example_inputs\)"),
        (nn.Linear(2, 2), r"returned a Linear; it must return \(module, example_inputs\)"),
        ((nn.Linear(2, 2),), r"returned a tuple of 1;"),
        (("gpt2", torch.ones(2)), r"returned a str where the module should be;"),
        ((nn.Linear(2, 2), 3), r"returned an int as example_inputs;"),
        ((nn.Linear(2, 2), torch.ones(2), 3.0), r"returned a float as loss; it must be a function"),
    ],
)
def test_a_wrong_result_of_build_model_is_refused_with_what_it_must_return(built, message):
    def wrong():
        return built

    with pytest.raises(TypeError, match=message):
        autopart.capture(wrong)


def test_an_error_in_build_model_keeps_its_traceback():
    def broken():
        return nn.Linear(4, "three"), torch.ones(2, 4)

    with pytest.raises(TypeError) as caught:
        autopart.capture(broken)
    assert "broken" in [entry.name for entry in caught.traceback]


def test_a_model_that_needs_values_says_to_build_it_on_a_device():
    class Reads(nn.Linear):
        def forward(self, x):
            return super().forward(x)[x > 0]

    with pytest.raises(autopart.CaptureError, match=r"give it real parameters \(torch\.device"):
        autopart.capture(lambda: (Reads(4, 4), torch.ones(2, 4)))


def test_a_tensor_that_is_neither_parameter_nor_buffer_needs_no_values():
    class WithTable(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.table = torch.arange(4.0)

        def forward(self, x):
            return super().forward(x) + self.table

    def real():
        with torch.device("cpu"):
            return WithTable(), torch.ones(2, 4)

    captured = autopart.capture(lambda: (WithTable(), torch.ones(2, 4)))
    assert captured.graph.hash == autopart.capture(real).graph.hash
    with pytest.raises(autopart.CaptureError, match="neither parameter nor buffer"):
        with torch.device("meta"):
            model = WithTable()
        autopart.save(model, torch.ones(2, 4), "never.pt")


def test_results_that_are_no_tensors_are_left_out_with_a_warning():
    class Cached(nn.Linear):
        def forward(self, x):
            return {"y": super().forward(x), "cache": object()}

    with pytest.warns(UserWarning, match=r"returns a object \(result\['cache'\]\), which is left"):
        captured = autopart.capture(lambda: (Cached(4, 3), torch.ones(2, 4)))
    assert captured.graph.num_outputs == 1


# ---- Hugging Face models with their default options ----


def gpt2(transformers):
    config = transformers.GPT2Config(
        n_layer=2, n_embd=8, n_head=2, vocab_size=31, bos_token_id=0, eos_token_id=0
    )
    assert config.use_cache
    return transformers.GPT2LMHeadModel(config)


def bert(transformers):
    config = transformers.BertConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=31,
    )
    return transformers.BertForMaskedLM(config)


def t5(transformers):
    config = transformers.T5Config(
        d_model=8,
        d_kv=4,
        d_ff=16,
        num_layers=2,
        num_heads=2,
        vocab_size=31,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def llama(transformers):
    config = transformers.LlamaConfig(
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=31,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [gpt2, bert, t5, llama])
def test_hugging_face_models_with_default_options_are_captured_as_real_ones_are(make, dtype):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    def build_model():
        torch.set_default_dtype(dtype)
        ids = torch.zeros(2, 5, dtype=torch.long)
        return make(transformers), {"input_ids": ids, "labels": ids}, "loss"

    def build_real():
        with torch.device("cpu"):
            return build_model()

    captured = autopart.capture(build_model)
    assert captured.graph.loss_output is not None
    assert captured.graph.to_json() == autopart.capture(build_real).graph.to_json()


# Large enough that nothing is run at full size to see what it keeps.
def large_gpt2(transformers):
    config = transformers.GPT2Config(n_layer=2, n_embd=1024, n_head=16)
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize("make", [large_gpt2, t5, llama])
def test_a_file_costs_in_the_command_what_the_graph_costs_in_python(make, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    def build_model():
        ids = torch.zeros(2, 512, dtype=torch.long)
        return make(transformers), {"input_ids": ids, "labels": ids}, "loss"

    captured = autopart.capture(build_model)
    captured.save(tmp_path / "m.graph.json")
    ran = subprocess.run(
        [COMMAND, "profile", tmp_path / "m.graph.json", "--device", "a100"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ran.stdout) == json.loads(
        _core.build_cost_graph(captured.graph, "a100", True).to_json()
    )


def test_a_captured_model_and_its_file_are_planned_like_the_module(tmp_path):
    captured = autopart.capture(build)
    captured.save(tmp_path / "m.graph.json")
    model, ids, loss, targets = build()
    plans = [
        autopart.plan(captured, gpus=2, device="a100"),
        autopart.plan(tmp_path / "m.graph.json", gpus=2, device="a100"),
        autopart.plan(model, ids, loss=loss, targets=targets, gpus=2, device="a100"),
    ]
    assert plans[0].stages and plans[0].num_stages == plans[2].num_stages
    assert {plan.model_hash for plan in plans} == {captured.graph.hash}
    assert len({plan.predicted_step_ms for plan in plans}) == 1
    assert plans[0].report().startswith("Sequential")


def test_a_captured_model_has_its_inputs_and_loss_inside():
    with pytest.raises(ValueError, match="has its inputs and loss inside"):
        autopart.plan(autopart.capture(build), torch.ones(1), gpus=2, device="a100")


def test_a_graph_file_is_no_model_to_run(tmp_path):
    autopart.capture(build).save(tmp_path / "m.graph.json")
    plan = autopart.plan(tmp_path / "m.graph.json", gpus=1, device="a100")
    with pytest.raises(ValueError, match="has no weights"):
        autopart.Executor(plan, tmp_path / "m.graph.json")


@pytest.mark.parametrize("make", [gpt2, llama])
def test_hugging_face_models_without_loss_are_captured_without_their_cache(make):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.warns(UserWarning, match="DynamicCache"):
        captured = autopart.capture(
            lambda: (make(transformers), {"input_ids": torch.zeros(2, 5, dtype=torch.long)})
        )
    assert captured.graph.loss_output is None and captured.graph.num_outputs == 1
