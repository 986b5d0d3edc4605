import json

import pytest


@pytest.fixture
def data(tmp_path):
    """A file of rows, of which some have an answer that a random model gives now and then."""
    path = tmp_path / "data.jsonl"
    rows = [{"prompt": f"{n}+1=", "question": f"{n}?", "answer": str(n % 3), "n": n} for n in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
