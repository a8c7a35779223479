"""Capture gives what eager gives, or refuses and names the line."""

import warnings

import pytest
import torch
from autopart.meta import meta_twin
from autopart.trace import CaptureError, set_real_tensors, trace
from autopart.tree import flatten, unflatten
from torch import nn


def run_of(body):
    return lambda model, tensors: body(model, *tensors)


def captured(body, model=None, examples=None):
    model = model or nn.Linear(4, 3)
    return trace(model, run_of(body), examples or [torch.ones(2, 4)], what="train_step")


def test_results_keep_their_structure():
    cap = captured(lambda m, x: ({"a": m(x), "b": (x * 2, None)}, m(x).sum()))
    assert cap.on_meta and cap.loss_output == 2
    assert cap.output_of_leaf == [0, 1, None]
    assert unflatten(cap.outputs, [1, 2, None]) == {"a": 1, "b": (2, None)}


def test_a_loss_that_is_also_a_result_is_one_output():
    def body(m, x):
        loss = m(x).sum()
        return loss, loss

    cap = captured(body)
    assert cap.loss_output == 0 and cap.output_of_leaf == [0]


def test_a_property_that_warns_does_so_once_however_many_modules_have_it():
    class Warns(nn.Linear):
        @property
        def old_name(self):
            warnings.warn("old_name is deprecated", FutureWarning, stacklevel=1)

    model = nn.Sequential(*[Warns(4, 4) for _ in range(5)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        captured(lambda m, x: (None, m(x).sum()), model)
    assert [str(w.message) for w in caught].count("old_name is deprecated") == 1


def test_a_branch_on_a_value_is_refused_with_its_line():
    def body(m, x):
        loss = m(x).sum()
        if loss > 0:
            loss = loss * 2
        return loss, loss

    with pytest.raises(CaptureError, match=r"test_trace.py:\d+ reads the value of a tensor"):
        captured(body)


def test_item_is_refused():
    with pytest.raises(CaptureError, match="reads the value"):
        captured(lambda m, x: (m(x).sum().item(), None))


def test_tolist_is_refused():
    with pytest.raises(CaptureError, match=r"test_trace\.py"):
        captured(lambda m, x: (m(x).tolist()[0][0] * x, None))


def test_a_result_that_is_no_tensor_is_refused():
    with pytest.raises(CaptureError, match=r"returns a float \(result\['n'\]\)"):
        captured(lambda m, x: ({"loss": m(x), "n": 3.0}, None))


def test_backward_of_torch_is_refused():
    def body(m, x):
        loss = m(x).sum()
        loss.backward()
        return loss, None

    with pytest.raises(CaptureError, match=r"model\.backward"):
        captured(body)


def test_errors_of_the_code_come_through():
    with pytest.raises(TypeError, match="nonsense"):
        captured(lambda m, x: (m(x, nonsense=1), None))


def test_an_operator_without_meta_kernel_falls_back_to_a_real_copy():
    model, x = nn.BatchNorm1d(4), torch.ones(2, 4)
    mean = model.running_mean.clone()
    state = torch.get_rng_state()
    cap = captured(lambda m, x: (torch.nn.functional.dropout(m(x))[x > 0], None), model, [x])
    assert not cap.on_meta
    assert torch.equal(model.running_mean, mean) and torch.equal(torch.get_rng_state(), state)


def test_tensors_of_the_closure_become_constants():
    weights = torch.arange(3.0)
    cap = captured(lambda m, x: (m(x) * weights, None))
    assert not cap.on_meta
    assert "Float(3" in str(cap.script.inlined_graph)


def test_autocast_inside_the_code_is_traced_with_its_casts():
    def body(m, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m(x), None

    cap = captured(body)
    assert cap.script(torch.ones(2, 4))[0].dtype == torch.bfloat16


def test_twins_keep_objects_and_storages_shared():
    base = torch.zeros(12)

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(base[:4])
            self.b = nn.Parameter(base[4:].view(2, 4))
            self.c = self.a

    twin = meta_twin(Shared())
    assert twin.c is twin.a
    assert twin.a.untyped_storage()._cdata == twin.b.untyped_storage()._cdata
    assert twin.b.storage_offset() == 4 and twin.b.shape == (2, 4)


def test_dict_subclasses_and_named_tuples_keep_their_class():
    from collections import OrderedDict, namedtuple

    Pair = namedtuple("Pair", "x y")
    value = OrderedDict(p=Pair(1, [2, {"k": 3}]), q=())
    leaves, tree = flatten(value)
    assert [leaf.path for leaf in leaves] == ["['p'].x", "['p'].y[0]", "['p'].y[1]['k']"]
    back = unflatten(tree, [leaf.value for leaf in leaves])
    assert back == value and type(back) is OrderedDict and type(back["p"]) is Pair


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        with torch.no_grad():
            target = torch.tanh(self.teacher(x)) + self.student(x)
            self.mean.mul_(0.9).add_(target.mean(0))
        return ((self.student(x) - target) ** 2).sum() + self.mean.sum()


def test_no_grad_inside_the_code_stops_gradients():
    model, x = Teacher(), torch.ones(2, 4)
    cap = captured(lambda m, x: (None, m(x)), model, [x])
    set_real_tensors(cap, model)
    (loss,) = cap.script(x)
    loss.backward()
    got = {n: p.grad for n, p in model.named_parameters()}
    model.zero_grad()
    model.mean.zero_()
    model(x).backward()
    assert got["teacher.weight"] is None
    assert torch.equal(got["student.weight"], model.student.weight.grad)
    assert not model.mean.requires_grad


def test_code_without_no_grad_is_left_as_it_is():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    assert "detach" not in str(
        captured(lambda m, x: (None, m(x).sum()), model).script.inlined_graph
    )


@pytest.mark.parametrize("on_meta", [True, False])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3, 2, 1, dilation=2, groups=2, bias=False), (2, 4, 9)),
        (nn.Conv1d(4, 6, 4, padding="same", dilation=3), (2, 4, 9)),
        (nn.Conv2d(4, 6, (2, 3), padding="same"), (2, 4, 5, 5)),
        (nn.Conv2d(4, 6, 3, padding="valid"), (4, 5, 5)),
        (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (2, 4, 5, 5)),
        (nn.Conv3d(2, 3, 2), (2, 2, 3, 4, 5)),
        (nn.ConvTranspose1d(4, 6, 3, 2, 1, output_padding=1), (2, 4, 5)),
        (nn.ConvTranspose2d(4, 6, 3, (2, 1), groups=2, dilation=2), (2, 4, 5, 5)),
    ],
)
def test_convolutions_are_captured_with_their_gradients(layer, shape, on_meta):
    closure = torch.ones(1)  # a tensor of the closure forbids meta

    def body(m, x):
        y = m(x)
        return None, (y if on_meta else y * closure).square().sum()

    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    cap = captured(body, layer, [x])
    assert cap.on_meta == on_meta
    set_real_tensors(cap, layer)
    layer.zero_grad()
    cap.script(x)[0].backward()
    got = layer.weight.grad.clone()
    layer.zero_grad()
    layer(x).square().sum().backward()
    assert torch.allclose(got, layer.weight.grad, rtol=1e-5)
