"""python -m autopart VERB: the verbs of the autopart command whose work is Python's."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import capture_command

_VERBS = {"capture": capture_command.main}


def main(args: Sequence[str]) -> int:
    if not args or args[0] not in _VERBS:
        print(f"usage: python -m autopart {'|'.join(_VERBS)} ...", file=sys.stderr)
        print("All other verbs are the autopart command's own.", file=sys.stderr)
        return 2
    return _VERBS[args[0]](args[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
