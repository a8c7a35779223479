"""Training by smp equals one device: loss, every gradient, every parameter, after every step.

Two oracles. Plain PyTorch over the same micro-batches: |a - b| <= 1e-12 max(1, max|b| of the
tensor), float64; not with dropout, whose masks it draws otherwise. The same plan with all ranks'
actions on one thread: to the last bit, over every transport. Each step starts from the one-device
run's state, so that differences do not add up.
"""

import itertools
import json

import pytest
import torch
from autopart import _core, smp
from autopart.smp.placement import named_tensors
from autopart.smp.program import _programs
from pairwise import pairwise
from torch import nn
from torch.nn import functional as F
from zoo import deep_zoo, make_entry, zoo

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
    entry = make_entry(name)
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
    """What a rank sees of each step: (losses, local gradients, gathered state, local names); and
    the program that ran: (graph, plan, seed)."""
    smp.init(config)
    entry = make_entry(name)
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
    (program,) = _programs.values()
    return seen, (program.blueprint.graph, program.blueprint.plan, program.blueprint.seed)


def one_thread(name, program, micro_batches, optimizer_name, states, steps=STEPS):
    """(losses, gradients, state after) of every step of the program, by one thread."""
    graph, plan, seed = program
    graph = _core.OpGraph.from_json(graph)
    entry = make_entry(name)
    executor = _core.Executor(
        _core.Plan.from_json(plan),
        _core.Model(graph, named_tensors(entry.model, graph)),
        one_thread=True,
        deadline_s=60.0,
        seed=seed,
        check_finite=False,
    )
    saved = entry.model.state_dict()  # buffers that are not persistent stay as they are
    tensors = {n: tensor for n, tensor in executor.parameters().items() if n in saved}
    parameters = {n: tensors[n] for n, _ in entry.model.named_parameters()}
    optimizer = make_optimizer(optimizer_name, parameters.values())
    record = []
    for step in range(steps):
        if states and step:
            with torch.no_grad():
                for n, tensor in tensors.items():
                    tensor.copy_(states[step][0][n])
            optimizer.load_state_dict(states[step][1])
        optimizer.zero_grad()
        result = executor.step(batch(entry, step, range(micro_batches)))
        losses = [row[graph.loss_output] for row in result.outputs]
        gradients = {n: p.grad.clone() for n, p in parameters.items() if p.grad is not None}
        optimizer.step()
        record.append((losses, gradients, clone(tensors)))
    return record


def assert_close(got, wanted, what):
    bound = 1e-12 * max(1.0, wanted.abs().max().item() if wanted.numel() else 0)
    difference = (got - wanted).abs().max().item() if wanted.numel() else 0.0
    assert difference <= bound, f"{what}: differs by {difference}, bound {bound}"


def assert_same_bits(got, wanted, what):
    assert torch.equal(got, wanted), f"{what}: differs by {(got - wanted).abs().max()}"


def check_against(compare, results, reference, dp, dp_rank_of, skip=()):
    """reference: of every step (losses, gradients, state after)."""
    for step, (losses, gradients, after) in enumerate(reference):
        found = set()
        for rank, seen in enumerate(results):
            got_losses, got_gradients, got_state, local = seen[step]
            mine = losses[dp_rank_of(rank) :: dp]
            for j, (got, wanted) in enumerate(zip(got_losses, mine, strict=True)):
                compare(got, wanted, f"rank {rank} step {step} loss {j}")
            for name, got in got_gradients.items():
                compare(got, gradients[name], f"rank {rank} step {step} gradient of {name}")
            found |= set(got_gradients)
            assert set(got_gradients) <= set(local)
            assert set(after) <= set(got_state)
            for name in set(after) - set(skip):
                compare(got_state[name], after[name], f"rank {rank} step {step} {name}")
        assert found == set(gradients)


def check(ranks, name, pp, dp, micro_batches, optimizer="adam", placement=None, **config):
    """micro_batches: of a replica. What the ranks saw, and the plan that they ran."""
    config |= {"pipeline_parallel_degree": pp, "microbatches": micro_batches, "deadline": 60.0}
    if placement:
        config |= {"auto_partition": False, "default_partition": 0}
    entry = make_entry(name)
    reference = None if entry.has_random else one_device(name, micro_batches * dp, optimizer)
    answers = ranks.run(
        pp * dp,
        "test_smp_equality:train",
        name=name,
        config=config,
        optimizer_name=optimizer,
        states=reference,
        placement=placement,
    )
    results, programs = zip(*answers, strict=True)
    spread = config.get("placement_strategy") == "spread"

    def dp_rank_of(rank):
        return rank % dp if spread else rank // pp

    if reference:
        truth = [(losses, gradients, after) for _, _, losses, gradients, after in reference]
        assert list(results[0][-1][2]) == list(truth[-1][2]), "the state's names and their order"
        # With replicas the statistics are replica 0's, as in DDP.
        skip = dict(entry.model.named_buffers()) if dp > 1 else ()
        check_against(assert_close, results, truth, dp, dp_rank_of, skip)
    oracle = one_thread(name, programs[0], micro_batches * dp, optimizer, reference)
    check_against(assert_same_bits, results, oracle, dp, dp_rank_of)
    return results, json.loads(programs[0][1])


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_mlp_with_a_skip(ranks, pp):
    results, _ = check(ranks, "skip_mlp", pp, 1, 4)
    held = [set(seen[-1][3]) for seen in results]
    assert sum(map(len, held)) == len(set().union(*held)), "each parameter is on one rank"


def test_a_skip_over_two_stages(ranks):
    placement = {"a": 0, "b": 1, "c": 2, "d": 3, "e": 3}
    _, plan = check(ranks, "skip_mlp", 4, 1, 3, placement=placement)
    assert [0, 3] in [[edge["from"], edge["to"]] for edge in plan["edges"]]


def test_mlp_by_gpipe_with_sgd(ranks):
    check(ranks, "skip_mlp", 2, 1, 3, optimizer="sgd", pipeline="simple")


@pytest.mark.parametrize("transport", ["shared memory", "gloo"])
@pytest.mark.parametrize("name", ["skip_mlp", "gpt2_dropout"])
def test_transports(ranks, name, transport):
    check(ranks, name, 2, 1, 3, transport=transport)


def test_replicas_alone(ranks):
    check(ranks, "skip_mlp", 1, 2, 3)


@pytest.mark.parametrize("placement_strategy", ["cluster", "spread"])
def test_pipelines_with_replicas(ranks, placement_strategy):
    check(ranks, "skip_mlp", 2, 2, 2, placement_strategy=placement_strategy)


def test_a_tied_weight_across_a_forced_cut(ranks):
    placement = {"embed": 0, "middle.0": 0, "middle.2": 1, "middle.3": 1, "head": 1}
    results, _ = check(ranks, "tied", 2, 1, 3, placement=placement)
    assert all("embed.weight" in seen[-1][3] for seen in results), "a copy on both stages"


def test_a_tied_weight_with_replicas(ranks):
    placement = {"embed": 0, "middle.0": 0, "middle.2": 1, "middle.3": 1, "head": 1}
    check(ranks, "tied", 2, 2, 2, placement=placement)


def replicated_statistics():
    smp.init({"microbatches": 2})
    entry = make_entry("batch_norm")
    model = smp.DistributedModel(entry.model)
    train_step = smp.step(lambda model, x, y: model.backward(model(x, y)))
    train_step(model, *batch(entry, 0, range(smp.dp_rank(), 4, 2)))
    return clone(dict(model.named_buffers()))


def test_batch_norm_statistics_of_replicas_are_the_first_ones(ranks):
    entry = make_entry("batch_norm")
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


@pytest.mark.parametrize("pipeline", ["interleaved", "simple"])
@pytest.mark.parametrize("name", [name for name in deep_zoo() if name.endswith("4_layers")])
def test_four_layers_on_four_stages(ranks, name, pipeline):
    """Tied heads, rotary tables that every layer uses, encoder and decoder: torch's own pipelining
    refuses most of these, and gives a wrong gradient for GPT-2's tied head."""
    _, plan = check(ranks, name, 4, 1, 4, pipeline=pipeline)
    assert len(plan["stages"]) == 4
    assert plan["schedule"] == ("gpipe" if pipeline == "simple" else "1f1b")


def test_a_tied_head_over_gloo_with_replicas(ranks):
    check(ranks, "gpt2", 2, 2, 2, transport="gloo")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pp", "dp", "micro_batches", "pipeline", "optimizer", "transport"),
    pairwise(
        name=[*zoo(), "gpt2_dropout"],
        pp=[1, 2, 3, 4],
        dp=[1, 2],
        micro_batches=[1, 2, 3, 7],
        pipeline=["interleaved", "simple"],
        optimizer=["sgd", "adam"],
        transport=["shared memory", "gloo"],
    ),
)
def test_every_pair_of_choices(ranks, name, pp, dp, micro_batches, pipeline, optimizer, transport):
    check(ranks, name, pp, dp, micro_batches, optimizer, pipeline=pipeline, transport=transport)


class Masks(nn.Module):
    """Returns its dropout masks too."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        masks = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            masks.append(F.dropout(torch.ones_like(x), 0.1))
            x = x * masks[-1]
        return x.square().mean(), torch.stack(masks)


def masks_of_steps(config):
    """([step][micro-batch of this replica] masks, program)"""
    smp.init(config)
    torch.manual_seed(0)
    model = smp.DistributedModel(Masks())

    @smp.step
    def train_step(model, x):
        loss, masks = model(x)
        model.backward(loss)
        return masks

    batch = torch.zeros(ROWS * config["microbatches"], 8)
    seen = [train_step(model, batch).outputs for _ in range(2)]
    (program,) = _programs.values()
    return seen, (program.blueprint.graph, program.blueprint.plan, program.blueprint.seed)


def masks_in_one_process(program, one_thread, micro_batches):
    graph, plan, seed = program
    graph = _core.OpGraph.from_json(graph)
    executor = _core.Executor(
        _core.Plan.from_json(plan),
        _core.Model(graph, named_tensors(Masks(), graph)),
        one_thread=one_thread,
        deadline_s=60.0,
        seed=seed,
        check_finite=False,
    )
    batch = torch.zeros(ROWS * micro_batches, 8)
    results = [executor.step([batch]) for _ in range(2)]
    masks = 1 - graph.loss_output
    return [[row[masks] for row in result.outputs] for result in results]


def test_dropout_masks_depend_on_nothing_but_seed_step_and_micro_batch(ranks):
    first = None
    for pp, dp, pipeline, transport in [
        (1, 1, "interleaved", None),
        (2, 1, "interleaved", "shared memory"),
        (2, 1, "simple", "gloo"),
        (4, 1, "simple", "shared memory"),
        (3, 1, "interleaved", "gloo"),
        (2, 2, "interleaved", "shared memory"),
    ]:
        config = {"pipeline_parallel_degree": pp, "microbatches": 4 // dp, "pipeline": pipeline}
        config |= {"seed": 7, "deadline": 60.0}
        if transport:
            config["transport"] = transport
        answers = ranks.run(pp * dp, "test_smp_equality:masks_of_steps", config=config)
        # Micro-batch j is done by replica j mod dp.
        replicas = [answers[replica * pp][0] for replica in range(dp)]
        masks = [
            [mask for js in zip(*parts, strict=True) for mask in js]
            for parts in zip(*replicas, strict=True)
        ]
        first = first or masks
        program = answers[0][1]
        everything = [masks, *(masks_in_one_process(program, one, 4) for one in (True, False))]
        for run, step, j in itertools.product(everything, range(2), range(4)):
            assert torch.equal(run[step][j], first[step][j]), (pp, dp, pipeline, transport, step, j)
    drawn = [mask for step in first for mask in step]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(drawn, 2))
    assert 0.05 < (torch.stack(drawn) == 0).double().mean() < 0.15


def test_training_with_dropout_does_not_depend_on_the_plan(ranks):
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
        runs.append(results[0][0])
    for other in runs[1:]:
        for mine, yours in zip(runs[0], other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine[0], yours[0], strict=True))
            assert all(torch.equal(mine[2][n], yours[2][n]) for n in mine[2])
