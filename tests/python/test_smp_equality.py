"""Training by smp equals one device: loss, every gradient, every parameter, after every step.

Each step starts from the one-device run's state, so that differences do not add up; the bound is
1e-12 * max(1, largest number of the tensor) in float64. With dropout another plan of the same graph
is what must be equal, bit by bit.
"""

import pytest
import torch
from autopart import smp
from zoo import zoo

ROWS = 2  # of a micro-batch
STEPS = 3


def make_optimizer(name, parameters):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return torch.optim.Adam(parameters, lr=1e-2)


def batch(entry, step, micro_batches):
    """The inputs of the given global micro-batches, joined."""
    parts = [entry.make_inputs(ROWS, 1000 * step + j) for j in micro_batches]
    return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


def one_device(name, micro_batches, optimizer_name, steps=STEPS):
    """[(state, optimizer state before; losses, gradients, state after)] of every step."""
    entry = zoo()[name]()
    model = entry.model
    optimizer = make_optimizer(optimizer_name, model.parameters())
    record = []
    for step in range(steps):
        before = clone(model.state_dict()), clone(optimizer.state_dict())
        optimizer.zero_grad()
        losses = []
        for j in range(micro_batches):
            loss = model(*batch(entry, step, [j]))
            (loss / micro_batches).backward()
            losses.append(loss.detach())
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        record.append((*before, losses, gradients, clone(model.state_dict())))
    return record


def clone(value):
    if isinstance(value, dict):
        return {k: clone(v) for k, v in value.items()}
    if isinstance(value, list):
        return [clone(v) for v in value]
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def train(name, config, optimizer_name, states, placement=None, steps=STEPS):
    """What a rank sees of each step: (losses, local gradients, gathered state, local names)."""
    smp.init(config)
    entry = zoo()[name]()
    if smp.rank() > 0:  # rank 0's values must win
        with torch.no_grad():
            for parameter in entry.model.parameters():
                parameter.fill_(torch.nan)
    model = entry.model
    optimizer = make_optimizer(optimizer_name, model.parameters())
    for path, stage in (placement or {}).items():
        smp.set_partition(model.get_submodule(path), stage)
    model = smp.DistributedModel(model)
    optimizer = smp.DistributedOptimizer(optimizer)

    @smp.step
    def train_step(model, *inputs):
        loss = model(*inputs)
        model.backward(loss)
        return loss

    seen = []
    for step in range(steps):
        if states and step:
            model.load_state_dict(states[step][0])
            optimizer.load_state_dict(states[step][1])
        mine = range(smp.dp_rank(), config["microbatches"] * smp.dp_size(), smp.dp_size())
        inputs = batch(entry, step, mine)
        if smp.pp_rank() > 0:  # others' data is never looked at
            inputs = [torch.zeros(0) for _ in inputs]
        optimizer.zero_grad()
        losses = train_step(model, *inputs).outputs
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        local = [n for n, _ in model.local_named_parameters()]
        assert all(p.is_meta != (n in local) for n, p in model.named_parameters())
        seen.append((losses, gradients, clone(dict(model.state_dict())), local))
    return seen


def assert_close(got, wanted, what):
    bound = 1e-12 * max(1.0, wanted.abs().max().item() if wanted.numel() else 0)
    difference = (got - wanted).abs().max().item() if wanted.numel() else 0.0
    assert difference <= bound, f"{what}: differs by {difference}, bound {bound}"


def check_equal(results, reference, dp, dp_rank_of):
    for step, (_, _, losses, gradients, after) in enumerate(reference):
        found = set()
        for rank, seen in enumerate(results):
            got_losses, got_gradients, got_state, local = seen[step]
            mine = losses[dp_rank_of(rank) :: dp]
            for j, (got, wanted) in enumerate(zip(got_losses, mine, strict=True)):
                assert_close(got, wanted, f"rank {rank} step {step} loss {j}")
            for name, got in got_gradients.items():
                assert_close(got, gradients[name], f"rank {rank} step {step} gradient of {name}")
            found |= set(got_gradients)
            assert set(got_gradients) <= set(local)
            assert list(got_state) == list(after)
            for name, got in got_state.items():
                assert_close(got, after[name], f"rank {rank} step {step} {name}")
        assert found == set(gradients)


def check(ranks, name, pp, dp, micro_batches, optimizer="adam", placement=None, **config):
    """micro_batches: of a replica."""
    config |= {"pipeline_parallel_degree": pp, "microbatches": micro_batches, "deadline": 60.0}
    if placement:
        config |= {"auto_partition": False, "default_partition": 0}
    reference = one_device(name, micro_batches * dp, optimizer)
    results = ranks.run(
        pp * dp,
        "test_smp_equality:train",
        name=name,
        config=config,
        optimizer_name=optimizer,
        states=reference,
        placement=placement,
    )
    spread = config.get("placement_strategy") == "spread"
    check_equal(results, reference, dp, lambda rank: rank % dp if spread else rank // pp)
    return results


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_mlp_with_a_skip(ranks, pp):
    results = check(ranks, "skip_mlp", pp, 1, 4)
    held = [set(seen[-1][3]) for seen in results]
    assert sum(map(len, held)) == len(set().union(*held)), "each parameter is on one rank"


def test_mlp_by_gpipe_with_sgd(ranks):
    check(ranks, "skip_mlp", 2, 1, 3, optimizer="sgd", pipeline="simple")


@pytest.mark.parametrize("transport", ["shared memory", "gloo"])
def test_transports(ranks, transport):
    check(ranks, "skip_mlp", 2, 1, 3, transport=transport)


def test_replicas_alone(ranks):
    check(ranks, "skip_mlp", 1, 2, 3)


@pytest.mark.parametrize("placement_strategy", ["cluster", "spread"])
def test_pipelines_with_replicas(ranks, placement_strategy):
    check(ranks, "skip_mlp", 2, 2, 2, placement_strategy=placement_strategy)


def test_a_tied_weight_across_a_forced_cut(ranks):
    placement = {"embed": 0, "middle.0": 0, "middle.2": 1, "middle.3": 1, "head": 1}
    results = check(ranks, "tied", 2, 1, 3, placement=placement)
    assert all("embed.weight" in seen[-1][3] for seen in results), "a copy on both stages"


def test_a_tied_weight_with_replicas(ranks):
    placement = {"embed": 0, "middle.0": 0, "middle.2": 1, "middle.3": 1, "head": 1}
    check(ranks, "tied", 2, 2, 2, placement=placement)


def replicated_statistics():
    smp.init({"microbatches": 2})
    entry = zoo()["batch_norm"]()
    model = smp.DistributedModel(entry.model)
    train_step = smp.step(lambda model, x, y: model.backward(model(x, y)))
    train_step(model, *batch(entry, 0, range(smp.dp_rank(), 4, 2)))
    return clone(dict(model.named_buffers()))


def test_batch_norm_statistics_of_replicas_are_the_first_ones(ranks):
    entry = zoo()["batch_norm"]()
    for j in (0, 2):
        entry.model(*batch(entry, 0, [j]))
    for buffers in ranks.run(2, "test_smp_equality:replicated_statistics"):
        for name, wanted in entry.model.named_buffers():
            assert_close(buffers[name], wanted, name)


def test_batch_norm_statistics_follow_the_micro_batches(ranks):
    check(ranks, "batch_norm", 2, 1, 3)


def test_values_of_every_kind_across_the_cuts(ranks):
    check(ranks, "every_kind", 4, 1, 3)


def test_a_convolution_net_with_batch_norm(ranks):
    check(ranks, "conv_net", 2, 1, 3)


def test_lstms_and_a_weight_with_two_names_in_one_module(ranks):
    check(ranks, "recurrent", 2, 1, 3)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
@pytest.mark.parametrize("pp", [2, 4])
def test_transformers(ranks, name, pp):
    check(ranks, name, pp, 1, 3)


def test_a_tied_head_over_gloo_with_replicas(ranks):
    check(ranks, "gpt2", 2, 2, 2, transport="gloo")


def test_dropout_does_not_depend_on_the_plan(ranks):
    runs = []
    for pp, pipeline in ((1, "interleaved"), (2, "interleaved"), (4, "simple")):
        config = {"pipeline_parallel_degree": pp, "microbatches": 3, "pipeline": pipeline}
        config["seed"] = 7
        results = ranks.run(
            pp,
            "test_smp_equality:train",
            name="dropout",
            config=config,
            optimizer_name="adam",
            states=None,
        )
        runs.append(results[0])
    for other in runs[1:]:
        for mine, yours in zip(runs[0], other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine[0], yours[0], strict=True))
            assert all(torch.equal(mine[2][n], yours[2][n]) for n in mine[2])
