"""A capture is made anew exactly when something that it froze has changed."""

import argparse
import functools

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
