"""autopart capture: a script in, a graph file and one line out; clear words where it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from autopart import _core
from autopart.__main__ import main

COMMAND = Path(__file__).resolve().parents[2] / "build" / "release" / "runtime" / "cli" / "autopart"

SCRIPT = """
import sys
import torch
from torch import nn
import neighbour

print("this goes to stderr")
assert len(sys.argv) == 1 and __file__.endswith(sys.argv[0])
assert __name__ != "__main__"


def build_model():
    model = nn.Sequential(nn.Linear(8, neighbour.WIDTH), nn.ReLU(), nn.Linear(neighbour.WIDTH, 4))
    return model, torch.zeros(6, 8), lambda y: y.square().mean()


def fails():
    return nn.Linear(4, "three"), torch.zeros(2, 4)


def returns_nothing():
    pass


class Branch(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum() > 0 else -y


def reads_a_value():
    return Branch(4, 4), torch.zeros(2, 4)


class Broken(nn.Linear):
    def forward(self, x):
        return super().forward(x[:, :2])


def fails_in_forward():
    return Broken(4, 4), torch.zeros(2, 4)


def leaves():
    sys.exit("no GPU")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour.py").write_text("WIDTH = 16\n")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def capture(*args):
    return main(["capture", *map(str, args)])


def test_the_graph_is_written_and_one_line_says_what_it_is(script, tmp_path, capsys):
    output = tmp_path / "m.graph.json"
    assert capture(f"{script}:build_model", "-o", output) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{output}  Sequential: ") and out.count("\n") == 1
    assert "212 parameters (848 B), file of" in out and out.endswith(" s\n")
    assert "this goes to stderr" in err and "building the model" in err
    graph = _core.OpGraph.from_json(output.read_text())
    assert graph.loss_output == 0 and f"{graph.num_nodes} operators" in out


def test_build_model_is_the_function_where_none_is_named(script, tmp_path, capsys):
    assert capture(script, "-o", tmp_path / "m.graph.json") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{script}:buildmodel"], r"has no function buildmodel: did you mean build_model?"),
        (["{script}:"], "is no SCRIPT.py:FUNCTION, for example train.py:build_model"),
        (["{folder}/model.pt"], "is no SCRIPT.py:FUNCTION"),
        (["{folder}/missing.py"], "there is no file"),
        (["{script}", "-o", "{folder}"], "is a folder: name a file in it"),
        (["{script}", "-o", "{folder}/none/m.json"], "there is no folder"),
    ],
)
def test_wrong_usage_ends_with_two_and_says_what_is_meant(script, capsys, arguments, message):
    filled = [a.format(script=script, folder=script.parent) for a in arguments]
    assert capture(*filled) == 2
    assert message in capsys.readouterr().err


def test_unknown_flags_end_with_two(script, capsys):
    with pytest.raises(SystemExit) as caught:
        capture(script, "--gpus", 2)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("function", "line", "error"),
    [
        ("fails", 'nn.Linear(4, "three")', "TypeError"),
        ("fails_in_forward", "super().forward(x[:, :2])", "RuntimeError"),
    ],
)
def test_code_that_fails_ends_with_one_and_its_own_lines(script, capsys, function, line, error):
    assert capture(f"{script}:{function}", "-o", script.parent / "m.json") == 1
    err = capsys.readouterr().err
    assert f"{script}:{function}: the code failed:" in err
    assert line in err and error in err and "mend it first" in err
    assert "capture_model.py" not in err and "Traceback" not in err
    assert not (script.parent / "m.json").exists()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("returns_nothing", "returns_nothing() returned None; it must return (module, example"),
        ("reads_a_value", "reads the value of a tensor"),
        ("leaves", "the script ended itself, with sys.exit('no GPU')"),
    ],
)
def test_what_cannot_be_captured_ends_with_one_and_a_sentence(script, capsys, function, message):
    assert capture(f"{script}:{function}") == 1
    err = capsys.readouterr().err
    assert message in err and 'File "' not in err


def test_a_script_with_a_syntax_error_is_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "bad.py").write_text("def build_model(:\n    pass\n")
    assert capture(tmp_path / "bad.py") == 1
    err = capsys.readouterr().err
    assert "def build_model(:" in err and "SyntaxError" in err


def test_verbs_that_are_not_pythons_are_refused(capsys):
    assert main(["plan", "model.pt"]) == 2
    assert "usage: python -m autopart capture" in capsys.readouterr().err


# ---- the command itself ----


def run_command(python_folder, *args, cwd):
    return subprocess.run(
        [COMMAND, "capture", *args],
        cwd=cwd,
        env={**os.environ, "PATH": f"{python_folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_runs_the_python_of_the_path_and_gives_its_exit_status(script):
    folder = Path(sys.executable).parent
    ran = run_command(folder, "train.py:build_model", cwd=script.parent)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("model.graph.json  Sequential: ")
    assert (script.parent / "model.graph.json").exists()
    assert run_command(folder, "train.py:fails", cwd=script.parent).returncode == 1


def test_a_python_without_torch_and_autopart_is_named_with_what_to_install(script, tmp_path):
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    ran = run_command(python.parent, "train.py", cwd=script.parent)
    assert ran.returncode == 1
    assert "has no torch and no autopart. Install them there" in ran.stderr
