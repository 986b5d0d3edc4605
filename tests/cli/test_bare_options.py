"""An option without its value: the message names the values that it takes."""

import pytest

BARE = {
    "plan --critic": "--critic: expected a value: a critic beside the policy: trunk, adapter, model, or model:NAME",
    "plan --reward-model": "--reward-model: expected a value: a reward model that trains along: adapter, model or model:",
    "plan --critic --vram 3": "--critic: expected a value: a critic beside the policy: trunk, adapter, model",
    "plan --vram": "--vram: expected a value: the card's memory in GiB",
    "export --dtype": "--dtype: expected a value: one of bfloat16, float16, float32: of the merged model",
    "sweep c.yaml --on": "--on: expected a value: one of ray: run side by side",
    "explain --rewards": "--rewards: expected a value: rewards of one group (default",
    "reward-model train --data": "--data: expected a value: a file, a folder, a name on the hub",
    "train --dead_groups": "--dead_groups: expected a value: one of keep, resample, roulette, replay: What becomes",
    "train --dead-groups --beta 0": "--dead-groups: expected a value: one of keep",
    "train --critic": "--critic: expected a value: A critic, for advantage gae: its keys",
    "train --prompt.template --beta 0": "--prompt.template: expected a value: How the prompt is made",
    "train --beta x": "--beta: invalid float value: 'x'",
}


@pytest.mark.parametrize("line", BARE)
def test_the_message_names_the_values(cli, line):
    code, _, err = cli(*line.split())
    assert code == 2
    assert f"argument {BARE[line]}" in err
