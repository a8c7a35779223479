import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import torch
from ranks import Pool

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ranks():
    pool = Pool()
    yield pool
    pool.close()
