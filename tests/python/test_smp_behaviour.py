"""What a user of smp sees beside gradients: results, errors, modes, clipping, states, memory."""

from collections import OrderedDict

import pytest
import torch
from autopart import smp
from ranks import RankError
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_ as imported_before  # what users have done by then

SCALE = 1.0


def net(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    layers = [nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 8), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(8, 4)).double()


def data(rows=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, 8, dtype=torch.float64, generator=generator),
        torch.randn(rows, 4, dtype=torch.float64, generator=generator),
    )


def start(model=None, pp=2, microbatches=2, **config):
    config = {
        "pipeline_parallel_degree": pp,
        "microbatches": microbatches,
        "deadline": 60.0,
    } | config
    smp.init(config)
    return smp.DistributedModel(model if model is not None else net())


@smp.step
def train_step(model, x, y):
    loss = F.mse_loss(model(x), y) * SCALE
    model.backward(loss)
    return loss


@smp.step()
def eval_step(model, x):
    return model(x)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


# Results


def structured():
    model = start()

    @smp.step
    def step(model, x, y):
        out = model(x)
        loss = F.mse_loss(out, y)
        model.backward(loss)
        return OrderedDict(loss=loss, nested=(out, [out.sum(1)]), nothing=None)

    x, y = data()
    result = step(model, x, y=y)
    assert type(result) is OrderedDict and result["nothing"] is None
    out = net()(x)
    close(result["nested"][0].concat(), out)
    close(result["nested"][1][0].outputs[1], out.sum(1)[2:])
    close(result["nested"][0].stack(), torch.stack([out[:2], out[2:]]))
    close(result["loss"].reduce_mean(), F.mse_loss(out, y))
    close(result["loss"].reduce_sum(), 2 * F.mse_loss(out, y))
    assert not result["nested"][0].outputs[0].requires_grad
    assert repr(result["loss"]).startswith("StepOutput")


def test_results_keep_their_structure_and_are_equal_on_all_ranks(ranks):
    ranks.run(2, "test_smp_behaviour:structured")


def test_inputs_are_split_along_the_axis_asked_for_or_given_whole(ranks):
    ranks.run(1, "test_smp_behaviour:split_alone")


def split_alone():
    smp.init({"microbatches": 2})
    torch.manual_seed(0)
    model = smp.DistributedModel(nn.Linear(3, 3).double())

    @smp.step(non_split_inputs=["offset"], input_split_axes={"x": 1})
    def step(model, x, offset, scale=1.0):
        return model(x.transpose(0, 1)) + offset * scale

    x = torch.arange(12.0, dtype=torch.float64).view(3, 4)
    offset = torch.ones(1, 3, dtype=torch.float64)
    got = step(model, x, offset, scale=2.0)
    close(got.concat(), model.get_module()(x.T).detach() + 2)


# Errors


def failing(kind):
    if kind == "before the model":
        smp.init({})
        return train_step(None, *data())
    model = start()
    x, y = data(3 if kind == "rows" else 4)
    if kind == "outside":
        return model(x)
    if kind == "backward outside":
        return model.backward(x.sum())
    if kind == "two models":
        return smp.DistributedModel(net())

    @smp.step
    def step(model, x, y):
        loss = F.mse_loss(model(x), y)
        if kind == "item":
            print(loss.item())
        if kind == "torch backward":
            loss.backward()
        if kind == "float result":
            return {"loss": 1.0}
        return loss

    return step(model, x, y) if kind != "rows" else train_step(model, x, y)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("rows", "x has 3 rows along axis 0, which do not divide into 2 micro-batches"),
        ("item", "reads the value of a tensor"),
        ("torch backward", "call model.backward"),
        ("float result", "returns a float"),
        ("outside", "inside a function decorated with @smp.step"),
        ("backward outside", "inside a function decorated with @smp.step"),
        ("two models", "one DistributedModel"),
    ],
)
def test_errors_come_on_every_rank_and_say_what_to_do(ranks, kind, message):
    with pytest.raises(RankError) as caught:
        ranks.run(2, "test_smp_behaviour:failing", kind=kind)
    assert all(e is not None and message in e[1] for e in caught.value.errors)


def test_a_step_needs_a_model(ranks):
    with pytest.raises(RankError, match=r"wrap it in smp\.DistributedModel"):
        ranks.run(1, "test_smp_behaviour:failing", kind="before the model")


def different_models():
    model = start(net() if smp_rank() == 0 else nn.Linear(8, 4).double())
    train_step(model, *data())


def smp_rank():
    import os

    return int(os.environ["RANK"])


def test_ranks_with_different_models_are_told(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(2, "test_smp_behaviour:different_models")
    assert all("different models" in e[1] for e in caught.value.errors)


# Captures


def numbers_change():
    global SCALE
    model = start()
    x, y = data()
    base = train_step(model, x, y).reduce_mean()
    SCALE = 3.0
    close(train_step(model, x, y).reduce_mean(), 3 * base)
    SCALE = 1.0
    close(train_step(model, x, y).reduce_mean(), base)
    close(train_step(model, *data(8)).reduce_mean(), F.mse_loss(net()(data(8)[0]), data(8)[1]))


def test_a_changed_number_or_shape_is_captured_anew(ranks):
    ranks.run(2, "test_smp_behaviour:numbers_change")


def modes():
    model = start(net(dropout=0.5), seed=3)
    x, y = data()
    plain = net(dropout=0.5).eval()
    first = train_step(model, x, y).outputs
    gradients = {n: p.grad.clone() for n, p in model.local_named_parameters()}
    model.eval()
    with torch.no_grad():
        close(eval_step(model, x).concat(), plain(x))
        close(eval_step(model, x[:2]).concat(), plain(x[:2]))
    assert all(torch.equal(p.grad, gradients[n]) for n, p in model.local_named_parameters())
    model.train()
    model.zero_grad()
    second = train_step(model, x, y).outputs
    return [first, second], [p.grad.clone() for p in model.local_parameters()]


def only_training():
    model = start(net(dropout=0.5), seed=3)
    x, y = data()
    first = train_step(model, x, y).outputs
    model.zero_grad()
    return [first, train_step(model, x, y).outputs], [
        p.grad.clone() for p in model.local_parameters()
    ]


def test_evaluation_between_training_steps_changes_nothing(ranks):
    with_evaluation = ranks.run(2, "test_smp_behaviour:modes")
    without = ranks.run(2, "test_smp_behaviour:only_training")
    for one, other in zip(with_evaluation, without, strict=True):
        for step in range(2):
            assert all(map(torch.equal, one[0][step], other[0][step]))
        assert all(map(torch.equal, one[1], other[1]))
    assert not torch.equal(without[0][0][0][0], without[0][0][1][0]), "masks differ by step"


def evaluation_first():
    model = start()
    x, y = data()
    model.eval()
    with torch.no_grad():
        close(eval_step(model, x).concat(), net()(x))
    model.train()
    close(train_step(model, x, y).reduce_mean(), F.mse_loss(net()(x), y))


def test_a_job_may_begin_with_evaluation(ranks):
    ranks.run(2, "test_smp_behaviour:evaluation_first")


def frozen_and_unused():
    model = net()
    model[0].requires_grad_(False)
    model.register_module("unused", nn.Linear(2, 2).double())
    forward = nn.Sequential.forward
    keys = list(model.state_dict())
    layers = list(model)[:-1]

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.unused = nn.Sequential(*layers), model.unused

        def forward(self, x):
            return forward(self.layers, x)

    outer = Outer()
    model = start(outer)
    train_step(model, *data())
    for name, parameter in model.named_parameters():
        no_gradient = "unused" in name or name.startswith("layers.0")
        if not parameter.is_meta:
            assert (parameter.grad is None) == no_gradient, name
    assert len(model.state_dict()) == len(keys)


def test_frozen_and_unused_parameters_have_no_gradient_and_stay_in_the_state(ranks):
    ranks.run(2, "test_smp_behaviour:frozen_and_unused")


# Clipping


def clipped(how, norm_type):
    model = start()
    train_step(model, *data())
    if how == "imported before":
        norm = imported_before(model.parameters(), 0.1, norm_type)
    elif how == "torch":
        norm = torch.nn.utils.clip_grad_norm_(list(model.parameters()), 0.1, norm_type)
    else:
        norm = smp.clip_grad_norm_(model.parameters(), 0.1, norm_type)
    return norm, {n: p.grad.clone() for n, p in model.local_named_parameters()}


@pytest.mark.parametrize(
    ("how", "norm_type"),
    [("imported before", 2.0), ("torch", float("inf")), ("smp", 2.0)],
)
def test_clipping_uses_the_norm_of_the_whole_model(ranks, how, norm_type):
    reference, (x, y) = net(), data()
    F.mse_loss(reference(x), y).backward()
    want = imported_before(reference.parameters(), 0.1, norm_type)
    for norm, gradients in ranks.run(2, "test_smp_behaviour:clipped", how=how, norm_type=norm_type):
        close(norm, want)
        for name, gradient in gradients.items():
            close(gradient, reference.get_parameter(name).grad)


def clip_with_stranger():
    model = start()
    train_step(model, *data())
    torch.nn.utils.clip_grad_norm_([*model.parameters(), nn.Parameter(torch.ones(1))], 1.0)


def test_clipping_parameters_of_the_model_with_others_is_refused(ranks):
    with pytest.raises(RankError, match="together with others"):
        ranks.run(2, "test_smp_behaviour:clip_with_stranger")


# States and memory


def states(after):
    raw = net()
    if not after:
        optimizer = torch.optim.Adam(raw.parameters(), lr=0.1)
    model = start(raw)
    if after:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = smp.DistributedOptimizer(optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    parameters = list(raw.parameters())
    for step in range(3):
        optimizer.zero_grad()
        train_step(model, *data(seed=step))
        optimizer.step()
        scheduler.step()
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    held = sum(p.nbytes for p in raw.parameters() if not p.is_meta)
    whole = sum(p.numel() * 8 for p in raw.parameters())
    state = model.state_dict(gather_to_rank0=True)
    return state, model.state_dict(), optimizer.state_dict(), held / whole


@pytest.mark.parametrize("after", [False, True])
def test_states_are_the_whole_models_and_a_rank_holds_a_part(ranks, after):
    reference = net()
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for step in range(3):
        x, y = data(seed=step)
        optimizer.zero_grad()
        for rows in (slice(0, 2), slice(2, 4)):
            (F.mse_loss(reference(x[rows]), y[rows]) / 2).backward()
        optimizer.step()
        scheduler.step()
    results = ranks.run(2, "test_smp_behaviour:states", after=after)
    shares = [result[3] for result in results]
    assert all(0 < share < 1 for share in shares) and abs(sum(shares) - 1) < 1e-9
    for rank, (on_rank0, state, optimizer_state, _) in enumerate(results):
        assert len(on_rank0) == (0 if rank else len(state))
        for name, value in reference.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-9)
        want = optimizer.state_dict()
        assert optimizer_state["param_groups"] == want["param_groups"]
        assert list(optimizer_state["state"]) == list(want["state"])
        for index, entry in want["state"].items():
            for key, value in entry.items():
                got = optimizer_state["state"][index][key]
                torch.testing.assert_close(got, value, rtol=1e-9, atol=1e-9)


def without_wrapped_optimizer():
    raw = net()
    optimizer = torch.optim.SGD(raw.parameters(), lr=0.5)
    model = start(raw)
    before = {n: p.detach().clone() for n, p in raw.named_parameters()}
    train_step(model, *data())
    optimizer.step()
    for name, parameter in model.local_named_parameters():
        assert torch.equal(parameter, before[name] - 0.5 * parameter.grad), name


def test_an_optimizer_made_before_and_never_wrapped_updates_every_stage(ranks):
    ranks.run(2, "test_smp_behaviour:without_wrapped_optimizer")


def accumulates():
    model = start()
    for seed in range(2):
        train_step(model, *data(seed=seed))
    return {n: p.grad.clone() for n, p in model.local_named_parameters()}


def test_gradients_of_several_steps_add_up(ranks):
    reference = net()
    for seed in range(2):
        x, y = data(seed=seed)
        F.mse_loss(reference(x), y).backward()
    for gradients in ranks.run(2, "test_smp_behaviour:accumulates"):
        for name, gradient in gradients.items():
            close(gradient, reference.get_parameter(name).grad)


def sum_loss():
    smp.init({"pipeline_parallel_degree": 2, "microbatches": 2})
    model = smp.DistributedModel(net(), average_grads_across_microbatches=False)

    @smp.step
    def step(model, x, y):
        loss = F.mse_loss(model(x), y, reduction="sum")
        model.backward(loss)
        return loss

    x, y = data()
    step(model, x, y)
    reference = net()
    F.mse_loss(reference(x), y, reduction="sum").backward()
    for name, parameter in model.local_named_parameters():
        close(parameter.grad, reference.get_parameter(name).grad)


def test_sum_losses_are_not_averaged(ranks):
    ranks.run(2, "test_smp_behaviour:sum_loss")


def hooks():
    model = start()
    called = []
    model.register_post_partition_hook(lambda m, o: called.append(("partition", m.partitioned)))
    model.register_post_step_hook(lambda m, o: called.append("step"))
    for _ in range(2):
        train_step(model, *data())
    assert called == [("partition", True), "step"]
    with pytest.raises(RuntimeError, match="before the first step"):
        model.float()
    state = model.state_dict()
    doubled = {name: value * 2 for name, value in state.items()}
    model.load_state_dict(doubled)
    again = model.state_dict()
    assert all(torch.equal(again[name], doubled[name]) for name in doubled)
    local = model.local_state_dict()
    assert local.pop("_smp_is_partial") and 0 < len(local) < len(state)


def test_hooks_run_once_and_states_load_after_the_split(ranks):
    ranks.run(2, "test_smp_behaviour:hooks")


def users_own_group():
    import torch.distributed as dist

    model = start()
    train_step(model, *data())
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    train_step(model, *data())
    dist.destroy_process_group()
    return ones.item()


def test_the_users_process_group_is_left_alone(ranks):
    assert ranks.run(2, "test_smp_behaviour:users_own_group") == [2.0, 2.0]


def hugging_face():
    import transformers

    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=8, use_cache=False
    )
    torch.manual_seed(0)
    model = start(transformers.GPT2LMHeadModel(config))

    @smp.step
    def step(model, batch):
        output = model(**batch)
        model.backward(output["loss"])
        return output

    batch = {"input_ids": torch.arange(16).view(4, 4), "labels": torch.arange(16).view(4, 4)}
    output = step(model, batch)
    assert type(output).__name__ == "CausalLMOutputWithCrossAttentions"
    assert output.logits.concat().shape == (4, 4, 32)
    return output["loss"].reduce_mean().item(), model.config.n_layer


def test_hugging_face_outputs_and_losses_come_back_as_their_class(ranks):
    one, other = ranks.run(2, "test_smp_behaviour:hugging_face")
    assert one == other and one[1] == 2


def test_install_makes_the_old_import_work():
    import sys

    smp.install()
    import smdistributed.modelparallel.torch as old

    assert old is smp and old.model.DistributedModel is smp.DistributedModel
    for name in [n for n in sys.modules if n.startswith("smdistributed")]:
        del sys.modules[name]
