"""What tests of programs share: rows that ask for a sum and for doubling, and words of a program that talks for itself."""

CALLS = [{"function": "add", "args": [1, 2], "expected": 3}, {"function": "add", "args": [10, 5], "expected": 15}]
ASSERTS = [{"code": "assert add(1, 2) == 3"}, {"code": "assert add(10, 5) == 15"}]
RUNS = [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n{3 * n}"} for n in (3, 7)]
ONE = [{"function": "f", "expected": 1}]
DONE = [{"stdin": "", "stdout": "done"}]

TALKER = """
import json, os, time
def take(size):
    data = b""
    while len(data) < size:
        part = os.read(3, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
def hear():
    return json.loads(take(int.from_bytes(take(4), "big")))
def say(message):
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    data = len(data).to_bytes(4, "big") + data
    while data:
        data = data[os.write(3, data):]
def leave(how):
    if how == "end":
        os._exit(0)
    if how == "close":
        os.close(3)
    time.sleep(60)
"""
"""It never lets the honest runner have the channel back."""
