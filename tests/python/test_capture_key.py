"""A capture is made anew exactly when something that it froze has changed."""

import argparse
import copy
import functools

import pytest
import torch
from autopart.capture_key import capture_key
from torch import nn

GLOBAL = 1.0


def digest(function, *arguments, module=None):
    return capture_key(function, arguments, module or nn.Linear(2, 2)).digests()


def test_equal_calls_have_equal_keys():
    module = nn.Linear(2, 2)
    one, two = (digest(lambda m, x: m(x), torch.rand(2, 2), 3, module=module) for _ in range(2))
    assert one == two


def test_shapes_dtypes_and_other_arguments_count():
    module = nn.Linear(2, 2)

    def key(*arguments):
        return digest(len, *arguments, module=module)

    base = key(torch.zeros(2, 2), 3)
    assert base != key(torch.zeros(3, 2), 3)
    assert base != key(torch.zeros(2, 2).double(), 3)
    assert base != key(torch.zeros(2, 2), 4)
    assert base == key(torch.ones(2, 2), 3)


def test_numbers_of_closures_globals_and_called_functions_count():
    global GLOBAL
    module, scale = nn.Linear(2, 2), 1.0

    def loss(x):
        return x * GLOBAL

    def body(model, x):
        return loss(model(x)) * scale

    base = digest(body, module=module)
    assert base == digest(body, module=module)
    scale = 2.0
    changed = digest(body, module=module)
    assert changed != base
    GLOBAL = 3.0
    assert digest(body, module=module) != changed
    GLOBAL = 1.0
    assert digest(body, module=module) == changed


def test_attributes_that_the_code_names_count_and_others_do_not():
    args = argparse.Namespace(alpha=1.0, epoch=0)
    module = nn.Linear(2, 2)

    def body(model, x):
        return model(x) * args.alpha

    base = digest(body, module=module)
    args.epoch = 1
    assert digest(body, module=module) == base
    args.alpha = 2.0
    assert digest(body, module=module) != base


def test_partials_methods_and_criterion_modules_are_read():
    criterion, module = nn.CrossEntropyLoss(label_smoothing=0.1), nn.Linear(2, 2)

    def body(model, x, weight):
        return criterion(model(x), x) * weight

    base = digest(functools.partial(body, weight=1.0), module=module)
    assert base != digest(functools.partial(body, weight=2.0), module=module)
    criterion.label_smoothing = 0.2
    assert base != digest(functools.partial(body, weight=1.0), module=module)


def test_modes_and_module_attributes_count():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    base = digest(len, module=module)
    module[1].eval()
    in_part = digest(len, module=module)
    assert in_part != base
    module[1].train()
    module[1].p = 0.2
    assert digest(len, module=module) not in (base, in_part)
    module[1].p = 0.1
    assert digest(len, module=module) == base
    with torch.no_grad():
        assert digest(len, module=module) != base
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert digest(len, module=module) != base
    module[0].bias.requires_grad_(False)
    assert digest(len, module=module) != base


def test_tensors_of_the_closure_count_locally_by_version():
    weight, module = torch.ones(2), nn.Linear(2, 2)

    def body(model, x):
        return model(x) * weight

    shared, full = digest(body, module=module)
    weight += 1
    assert digest(body, module=module)[0] == shared
    assert digest(body, module=module)[1] != full


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.scales = [1.0, 2.0]
        self.limits = {"low": (0, 1), "high": None}
        self.bias = None
        self.act = torch.relu
        self.config = argparse.Namespace(alpha=1.0, beta=0.0, gamma=0.0, delta=0.0, epoch=0)
        self.table = [torch.ones(2), self.layer.weight]

    @property
    def alpha(self):
        return self.config.alpha + self.config.beta + self.config.gamma + self.config.delta

    def scale(self, x):
        return x * self.scales[0] * GLOBAL

    def forward(self, x):
        return self.act(self.scale(self.layer(x))) * self.alpha + self.table[0]


def change_list(body):
    body.scales[1] = 3.0


def change_dictionary(body):
    body.limits["low"] = (0, 2)


def change_none(body):
    body.bias = 1.0


def change_function(body):
    body.act = torch.tanh


def change_library_function(body):
    body.act = nn.functional.silu


def change_object(body):
    body.config.alpha = 2.0


def change_tensor(body):
    body.table[0] += 1


def change_hooks(body):
    body.layer.register_forward_hook(lambda module, args, output: output * 2)


CHANGES = [
    change_list,
    change_dictionary,
    change_none,
    change_function,
    change_library_function,
    change_object,
    change_tensor,
    change_hooks,
]


@pytest.mark.parametrize("change", CHANGES)
def test_attributes_of_modules_count_whatever_their_kind(change):
    body = Body()
    base = digest(len, module=body)
    assert digest(len, module=body) == base
    change(body)
    assert digest(len, module=body) != base


def test_what_forward_reads_through_methods_and_properties_counts():
    global GLOBAL
    body = Body()
    base = digest(len, module=body)
    GLOBAL = 2.0
    changed = digest(len, module=body)
    GLOBAL = 1.0
    assert changed != base
    assert digest(len, module=body) == base


def test_training_and_what_nobody_reads_do_not_count():
    body = Body()
    optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
    base = digest(len, module=body)
    body(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    body.config.epoch = 1
    assert digest(len, module=body) == base


def test_two_copies_of_a_module_share_their_key():
    body = Body()
    assert digest(len, module=body)[0] == digest(len, module=copy.deepcopy(body))[0]


def digest_of_body():
    return digest(len, module=Body())


def test_every_process_gets_the_same_key(ranks):
    (one, _), (other, _) = ranks.run(2, "test_capture_key:digest_of_body")
    assert one == other


def test_functions_of_one_name_count_by_their_code():
    module = nn.Linear(2, 2)
    assert digest(lambda x: x * 1, module=module) != digest(lambda x: x * 2, module=module)
