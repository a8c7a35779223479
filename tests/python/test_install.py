"""One version for Python, the command and C++; what `pip install .` leaves in an environment."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import autopart
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

# What a user does first: save a model, plan it with the installed command.
FIRST_STEPS = """
import subprocess, sys, torch, autopart, autopart.smp
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
autopart.save(model, (torch.randn(6, 8),), "model.pt", loss=torch.nn.functional.cross_entropy,
              targets=torch.randint(0, 4, (6,)))
plan = autopart.load_plan("plan.json") if len(sys.argv) > 1 else None
print(autopart.__version__, autopart.__file__, plan is not None)
"""


def command() -> Path:
    return ROOT / "build" / "release" / "runtime" / "cli" / "autopart"


def test_python_and_the_command_say_the_same_version():
    printed = subprocess.run([command(), "--version"], capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["autopart", autopart.__version__]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pip_install_leaves_the_package_and_a_command_that_plans(tmp_path):
    # From a copy, as an sdist would be: the tree's own extension must not be what is found.
    source = tmp_path / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)

    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    torch_site = Path(torch.__file__).parents[1]
    (Path(site) / "torch.pth").write_text(f"import site; site.addsitedir('{torch_site}')\n")
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", source],
        check=True,
    )

    work = tmp_path / "work"
    work.mkdir()
    subprocess.run([python, "-c", FIRST_STEPS], cwd=work, check=True)
    env = {"PATH": f"{tmp_path}/env/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run(["autopart", "plan", "model.pt", "--gpus", "2"], cwd=work, env=env, check=True)
    seen = subprocess.run(
        [python, "-c", FIRST_STEPS, "plan"], cwd=work, capture_output=True, text=True, check=True
    )
    version, file, has_plan = seen.stdout.split()
    assert version == autopart.__version__
    assert Path(file).is_relative_to(tmp_path / "env")
    assert has_plan == "True"
    assert sysconfig.get_python_version() in file
