import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny model of two layers whose matrices are large enough for 4 bits."""
    from grpo_plus.testing import make_tiny_model

    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, architecture="llama", hidden=64)
    return str(path)
