import pytest

from vlmtune.benchmarks.cola_single import ColaSingle


@pytest.fixture
def fixture(tmp_path):
    """Cola's single-object task of three images a class."""
    return ColaSingle.fixture(tmp_path)
