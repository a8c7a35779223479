"""autopart.plan: every limit of the command line can be given, and is kept or refused in words."""

import autopart
import pytest
import torch
from autopart import _core
from torch import nn


def build():
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6)]
    return nn.Sequential(*blocks), torch.zeros(8, 256), lambda y: y.square().mean()


@pytest.fixture(scope="module")
def model():
    return autopart.capture(build)


def stage_of_modules(captured, plan):
    """Module path -> stages of its operators."""
    nodes = _core.build_cost_graph(captured.graph, "a100", True).nodes
    stages = {}
    for stage in plan.stages:
        for node in stage.nodes:
            stages.setdefault(nodes[node].module, set()).add(stage.index)
    return stages


def test_a_batch_is_cut_into_micro_batches_of_the_captured_size(model):
    plan = autopart.plan(model, gpus=2, device="a100", stages=2, batch=48)
    assert plan.micro_batches == 6


def test_a_batch_that_no_size_divides_is_refused(model):
    with pytest.raises(ValueError, match="13"):
        autopart.plan(model, gpus=2, device="a100", batch=13)


def test_a_pinned_module_stands_on_its_stage(model):
    plan = autopart.plan(model, gpus=2, device="a100", stages=2, pins={"1": 0, "2": 1})
    stages = stage_of_modules(model, plan)
    assert stages["1.0"] == {0} and stages["2.0"] == {1} and stages["0.0"] == {0}


def test_a_pin_to_an_unknown_module_is_refused_by_name(model):
    with pytest.raises(ValueError, match="decoder"):
        autopart.plan(model, gpus=2, device="a100", stages=2, pins={"decoder": 0})


def test_modules_that_are_to_share_a_stage_do(model):
    plan = autopart.plan(model, gpus=3, device="a100", stages=3, same_stage=[["1", "2", "3"]])
    stages = stage_of_modules(model, plan)
    assert stages["1.0"] == stages["2.0"] == stages["3.0"] and len(stages["1.0"]) == 1


def test_recomputation_and_sharded_optimizers_can_be_asked_for(model):
    limits = dict(gpus=4, device="a100", stages=2, replicas=2, micro_batches=8, schedule="1f1b")
    plain = autopart.plan(model, **limits)
    recomputed = autopart.plan(model, **limits, recompute="all")
    sharded = autopart.plan(model, **limits, shard_optimizer=True)
    assert recomputed.predicted_step_ms > plain.predicted_step_ms
    peak = [plan.stages[0].peak_memory_bytes for plan in (plain, sharded)]
    assert peak[1] < peak[0]


def test_an_unknown_kind_of_recomputation_is_refused(model):
    with pytest.raises(ValueError, match="some"):
        autopart.plan(model, gpus=2, device="a100", recompute="some")


def test_the_whole_space_is_searched_where_asked(model):
    limits = dict(gpus=4, device="a100", stages=2)
    everything = autopart.plan(model, **limits, search="all")
    today = autopart.plan(model, **limits, search="executable")
    assert everything.predicted_step_ms <= today.predicted_step_ms
    assert today.schedule in ("gpipe", "1f1b")


def test_another_search_space_is_refused(model):
    with pytest.raises(ValueError, match="search is 'executable' or 'all', not 'some'"):
        autopart.plan(model, gpus=2, device="a100", search="some")


def test_where_nothing_fits_the_error_says_by_how_much(model):
    with pytest.raises(RuntimeError, match="B"):
        autopart.plan(model, gpus=2, device="a100", memory=1000)


def test_options_are_fields_and_keywords_of_one_object():
    options = _core.PlannerOptions(stages=2, pins=[("head", 1)], search="all")
    assert (options.stages, options.pins, options.search) == (2, [("head", 1)], "all")
    assert options.replicas is None and options.training and options.iterations > 0
    options.replicas = 4
    assert options.replicas == 4


def test_an_unknown_option_is_refused_by_name():
    with pytest.raises(TypeError, match="PlannerOptions has no stage"):
        _core.PlannerOptions(stage=2)
