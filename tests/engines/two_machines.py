"""Two machines on one: network namespaces with a cable between them; where those are not allowed, two by loopback."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def _run(*words):
    return subprocess.run(words, capture_output=True, check=False, timeout=20).returncode == 0


class TwoMachines:
    """Starts `grpo-plus train` on both as the README says, and ends what is left of it."""

    def __init__(self, port, environment, end_tree):
        self._port, self._environment, self._end_tree = port, environment, end_tree
        self.names = [f"grpo-plus-{os.getpid()}-{number}" for number in range(2)]
        self._started = []
        self.apart = self._lay_cable()
        self.address = "10.77.0.1" if self.apart else "127.0.0.1"

    def _lay_cable(self):
        one, two = self.names
        words = [
            f"ip netns add {one}",
            f"ip netns add {two}",
            f"ip link add cable netns {one} type veth peer name cable netns {two}",
            *(f"ip -n {name} addr add 10.77.0.{number}/24 dev cable" for number, name in enumerate(self.names, 1)),
            *(f"ip -n {name} link set {card} up" for name in self.names for card in ("lo", "cable")),
            f"ip netns exec {one} unshare -m true",
        ]
        try:
            return all(_run(*each.split()) for each in words)
        except FileNotFoundError:
            return False

    def command(self, number, config, *flags, port=0):
        """The README's command for one of the machines."""
        launch = ["--accelerate_config", EXAMPLES / "accelerate" / "ddp_cpu.yaml", "--num_machines", 2]
        launch += ["--num_processes", 2, "--machine_rank", number]
        launch += ["--main_process_ip", self.address, "--main_process_port", port or self._port()]
        words = [sys.executable, "-m", "grpo_plus.cli", "train", config, *launch, *flags]
        return [str(word) for word in words]

    def start(self, number, config, *flags, log, port, private=None, environment=()):
        """Start it; ``private`` is a pair of folders, of which this machine sees the first in the place of the second."""
        words = self.command(number, config, *flags, port=port)
        if private is not None:
            own, place = private
            mount = f"mount --bind {shlex.quote(str(own))} {shlex.quote(str(place))}"
            words = ["unshare", "-m", "sh", "-c", f"{mount} && exec {shlex.join(words)}"]
        if self.apart:
            words = ["ip", "netns", "exec", self.names[number], *words]
        card = "cable" if self.apart else "lo"
        variables = {**self._environment, "GLOO_SOCKET_IFNAME": card, "CUDA_VISIBLE_DEVICES": "", **dict(environment)}
        with Path(log).open("w") as file:
            streams = {"stdout": file, "stderr": subprocess.STDOUT, "start_new_session": True}
            process = subprocess.Popen(words, env=variables, cwd=Path(config).parent, **streams)
        self._started.append(process)
        return process

    def both(self, config, *flags, logs, each=((), ()), private=(None, None), environment=()):
        """Start both; gives the processes. ``each`` are further flags of each machine."""
        port = self._port()
        options = [{"log": logs[number], "port": port, "private": private[number]} for number in range(2)]
        return [
            self.start(number, config, *flags, *each[number], environment=environment, **options[number])
            for number in range(2)
        ]

    def run(self, config, *flags, logs, seconds=300, **options):
        """Start both, and wait for their end; gives exit codes and outputs."""
        processes = self.both(config, *flags, logs=logs, **options)
        until = time.monotonic() + seconds
        codes = [process.wait(max(until - time.monotonic(), 1)) for process in processes]
        return codes, [log.read_text() for log in logs]

    def clear(self):
        for process in self._started:
            self._end_tree(process)
        self._started = []

    def close(self):
        self.clear()
        for name in self.names:
            _run("ip", "netns", "del", name)
