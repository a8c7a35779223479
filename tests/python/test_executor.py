"""autopart.plan and autopart.Executor: one process, several ranks, no launcher."""

import autopart
import pytest
import torch
from test_smp_equality import ROWS, assert_close, batch, make_optimizer, one_device
from zoo import zoo


def identity(loss):
    return loss


def planned(name, stages, micro_batches, **options):
    entry = zoo()[name]()
    example = entry.make_inputs(ROWS, 0)
    plan = autopart.plan(
        entry.model,
        example,
        loss=identity,
        gpus=stages,
        stages=stages,
        micro_batches=micro_batches,
        **options,
    )
    return entry, example, plan


@pytest.mark.parametrize("mode", ["threads", "one-thread"])
@pytest.mark.parametrize("name", ["skip_mlp", "tied", "batch_norm", "gpt2"])
def test_training_equals_one_device(name, mode):
    entry, example, plan = planned(name, 2, 3)
    executor = autopart.Executor(plan, entry.model, example, loss=identity, mode=mode)
    optimizer = make_optimizer("adam", entry.model.parameters())
    for step, (state, optimizer_state, losses, gradients, after) in enumerate(
        one_device(name, 3, "adam")
    ):
        entry.model.load_state_dict(state)
        optimizer.load_state_dict(optimizer_state)
        optimizer.zero_grad()
        result = executor.step(*batch(entry, step, range(3)))
        assert_close(result.loss, sum(losses) / 3, "loss")
        for parameter_name, gradient in gradients.items():
            assert_close(entry.model.get_parameter(parameter_name).grad, gradient, parameter_name)
        optimizer.step()
        for key, value in entry.model.state_dict().items():
            assert_close(value, after[key], key)


def test_threads_equal_one_thread_bit_by_bit_with_dropout():
    runs = []
    for mode in ("threads", "one-thread"):
        entry, example, plan = planned("dropout", 3, 4, schedule="1f1b")
        executor = autopart.Executor(plan, entry.model, example, loss=identity, mode=mode, seed=5)
        losses = [executor.step(*batch(entry, step, range(4))).loss for step in range(2)]
        runs.append((losses, [p.grad for p in entry.model.parameters()]))
    for one, other in zip(*runs, strict=True):
        assert all(map(torch.equal, one, other))


def test_replicas_in_one_process_follow_the_users_parameters():
    entry, example, _ = planned("skip_mlp", 2, 4)
    plan = autopart.plan(
        entry.model, example, loss=identity, gpus=4, stages=2, replicas=2, micro_batches=4
    )
    executor = autopart.Executor(plan, entry.model, example, loss=identity)
    optimizer = make_optimizer("sgd", entry.model.parameters())
    for step, (_, _, _, _, after) in enumerate(one_device("skip_mlp", 4, "sgd")):
        optimizer.zero_grad()
        executor.step(*batch(entry, step, range(4)))
        optimizer.step()
        for key, value in entry.model.state_dict().items():
            assert_close(value, after[key], key)


def test_inference_by_a_plan_without_loss(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    example, x = torch.zeros(2, 4), torch.randn(6, 4)
    plan = autopart.plan(model, example, gpus=2, stages=2, micro_batches=3)
    executor = autopart.Executor(plan, model, example)
    (output,) = executor(x)
    torch.testing.assert_close(output, model(x), rtol=0, atol=1e-6)

    autopart.save(model, example, tmp_path / "model.pt")
    plan.save(tmp_path / "plan.json")
    from_files = autopart.Executor(
        autopart.load_plan(tmp_path / "plan.json"), tmp_path / "model.pt"
    )
    assert torch.equal(from_files(x)[0], output)


def test_a_file_and_its_module_have_one_plan(tmp_path):
    entry, example, plan = planned("gpt2", 2, 4, device="h100")
    autopart.save(entry.model, example, tmp_path / "model.pt", loss=identity)
    of_file = autopart.plan(tmp_path / "model.pt", gpus=2, stages=2, micro_batches=4, device="h100")
    assert of_file == plan


def test_a_plan_prints_as_its_report_and_survives_a_file(tmp_path):
    _, _, plan = planned("skip_mlp", 2, 4, device="h100")
    assert "PLAN" in repr(plan) and "stage" in repr(plan)
    plan.save(tmp_path / "plan.json")
    assert autopart.load_plan(tmp_path / "plan.json") == plan
    assert plan.num_stages == 2 and plan.micro_batches == 4 and plan.predicted_step_ms > 0


def test_wrong_uses_are_told():
    entry, example, plan = planned("skip_mlp", 2, 2)
    with pytest.raises(ValueError, match="needs example_inputs"):
        autopart.plan(entry.model, gpus=2)
    with pytest.raises(ValueError, match="stages"):
        autopart.plan(entry.model, example, loss=identity, gpus=100, stages=100)
    with pytest.raises(ValueError, match="h100"):
        autopart.plan(entry.model, example, loss=identity, gpus=2, device="abacus")
    with pytest.raises(ValueError, match='"threads" or "one-thread"'):
        autopart.Executor(plan, entry.model, example, loss=identity, mode="fork")
    other = zoo()["tied"]()
    with pytest.raises(ValueError, match="model"):
        autopart.Executor(plan, other.model, other.make_inputs(ROWS, 0), loss=identity)
    executor = autopart.Executor(plan, entry.model, example, loss=identity)
    with pytest.raises(ValueError, match="takes 2 tensors, 1 were given"):
        executor.step(example[0])
    with pytest.raises(ValueError, match="micro-batches"):
        executor.step(*(tensor[:3] for tensor in batch(entry, 0, range(2))))
