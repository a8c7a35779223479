"""Holds the sources to the one-way rule of docs/architecture.md.

A module includes only what the arrows allow; no header includes torch/torch.h, which costs every
file that includes it tens of seconds; metis.h stands in one file; the torch-free half names no
torch header.  Prints each breach and exits with 1, else 0.

    check_includes.py [ROOT]
"""

import re
import sys
from pathlib import Path

MAY_INCLUDE = {
    "partitioner": set(),
    "pipeline": {"partitioner"},
    "profiler": {"partitioner"},
    "runtime": {"partitioner", "pipeline", "profiler"},
    "python": {"partitioner", "pipeline", "profiler", "runtime"},
}
TORCH_FREE = {"partitioner", "pipeline"}
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def includes(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [m.group(1) for line in lines if (m := INCLUDE.match(line))]


def sources(root: Path, module: str) -> list[Path]:
    return sorted(p for p in (root / module).rglob("*") if p.suffix in (".h", ".cc", ".cpp", ".cu"))


def breaches(root: Path) -> list[str]:
    found = []
    with_metis = []
    for module, allowed in MAY_INCLUDE.items():
        for path in sources(root, module):
            name = path.relative_to(root)
            for include in includes(path):
                other = include.split("/")[0]
                if other in MAY_INCLUDE and other != module and other not in allowed:
                    found.append(f"{name}: {module}/ may not include {include}")
                if other == "tests":
                    found.append(f"{name}: includes a test helper, {include}")
                if path.suffix == ".h" and include in ("torch/torch.h", "torch/extension.h"):
                    found.append(f"{name}: a header includes {include}")
                if module in TORCH_FREE and TORCH.match(include):
                    found.append(f"{name}: {module}/ is free of torch, but includes {include}")
                if include == "metis.h":
                    with_metis.append(str(name))
    if with_metis != ["partitioner/internal/metis.cc"]:
        found.append(
            f"metis.h is for partitioner/internal/metis.cc alone, included by {with_metis}"
        )
    return found


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    found = breaches(root)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
