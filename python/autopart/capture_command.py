"""autopart capture script.py:build_model -o model.graph.json

Results go to stdout; progress, and what the script prints, to stderr. Exit status: 0 good, 1 the
script or the capture failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib.util
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from .capture_model import capture
from .captured_model import CapturedModel

_SHOWN_FRAMES = 6  # of the user's traceback
_DEFAULT_FUNCTION = "build_model"


class _UsageError(Exception):
    pass


class _ScriptError(Exception):
    """The user's code failed; the cause is its exception."""


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="autopart capture",
        description="Writes the graph of the model that a Python function builds.",
    )
    parser.add_argument("script", help="SCRIPT.py:FUNCTION (build_model where none is named)")
    parser.add_argument(
        "-o", "--output", default="model.graph.json", help="where the graph is written (JSON)"
    )
    flags = parser.parse_args(args)
    start = time.monotonic()
    try:
        script, function = _parse(flags.script)
        output = _writable(flags.output)
        with redirect_stdout(sys.stderr), _short_warnings():
            captured = _capture(script, function)
        size = captured.save(output)
    except _UsageError as error:
        return _fail(str(error), 2)
    except _ScriptError as error:
        return _fail(f"{flags.script}: {error}", 1)
    except OSError as error:
        return _fail(f"cannot write {flags.output}: {error.strerror or error}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    print(
        f"{output}  {captured.name}: {captured.num_operators:,} operators, "
        f"{captured.num_parameters:,} parameters ({_bytes(captured.parameter_bytes)}), "
        f"file of {_bytes(size)}, {time.monotonic() - start:.1f} s"
    )
    return 0


def _parse(text: str) -> tuple[Path, str]:
    path, colon, function = text.rpartition(":")
    if not colon:
        path, function = text, _DEFAULT_FUNCTION
    script = Path(path)
    if not function.isidentifier() or script.suffix != ".py":
        raise _UsageError(f"{text!r} is no SCRIPT.py:FUNCTION, for example train.py:build_model")
    if not script.is_file():
        raise _UsageError(f"there is no file {script}")
    return script, function


def _writable(path: str) -> Path:
    """Said before the minute that a large model takes."""
    output = Path(path)
    if output.is_dir():
        raise _UsageError(f"-o {output} is a folder: name a file in it")
    if not output.absolute().parent.is_dir():
        raise _UsageError(f"-o {output}: there is no folder {output.parent}")
    return output


def _capture(script: Path, function: str) -> CapturedModel:
    try:
        _say(f"loading {script}")
        build_model = _function(_load(script), function, script)
        return capture(_telling(build_model))
    except _UsageError:
        raise
    except SystemExit as error:
        raise _ScriptError(f"the script ended itself, with sys.exit({error.code!r})") from error
    except Exception as error:
        raise _ScriptError(_explain(error)) from error


def _load(script: Path) -> ModuleType:
    """The script as a module, so that its `if __name__ == "__main__"` part does not run."""
    name = "autopart_script"
    spec = importlib.util.spec_from_file_location(name, script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(script.absolute().parent))
    sys.argv = [str(script)]
    spec.loader.exec_module(module)
    return module


def _function(module: ModuleType, name: str, script: Path) -> Callable[[], Any]:
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    functions = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
    near = difflib.get_close_matches(name, functions, 1)
    hint = f"did you mean {near[0]}?" if near else "write SCRIPT.py:FUNCTION"
    raise _UsageError(f"{script} has no function {name}: {hint}")


def _telling(build_model: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(build_model)
    def telling() -> Any:
        _say("building the model on the meta device")
        built = build_model()
        _say("tracing it")
        return built

    return telling


def _explain(error: Exception) -> str:
    """The user's part of the traceback, or, where the error is ours, its message alone."""
    ours, torchs = os.path.dirname(__file__), os.path.dirname(torch.__file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename[0] != "<"]
    if frames[-1].filename.startswith(ours) and not isinstance(error, SyntaxError):
        return str(error)
    users = [f for f in frames if not f.filename.startswith((ours, torchs))]
    shown = "".join(traceback.format_list(users[-_SHOWN_FRAMES:]))
    last = "".join(traceback.format_exception_only(type(error), error)).rstrip()
    return (
        f"the code failed:\n{shown}{last}\n"
        'The model is built and called under torch.device("meta"), where tensors have shapes but '
        'no values. What needs values goes under `with torch.device("cpu"):`; if the code also '
        "fails without autopart, mend it first"
    )


@contextmanager
def _short_warnings() -> Iterator[None]:
    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        # Of libraries to those who write them.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.showwarning = show
        yield


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _fail(message: str, status: int) -> int:
    print(f"autopart capture: {message}", file=sys.stderr)
    return status


def _bytes(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.3g} {' KMGT'[power]}iB"
