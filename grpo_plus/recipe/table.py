"""The table of needs, exclusions and replacements of each part, among fields, wrappers and other parts."""

from collections.abc import Iterator
from typing import Any

from grpo_plus.objectives.objective import reads_old_logps
from grpo_plus.recipe.choice import UNSCORED, ConfigFacts
from grpo_plus.recipe.launch import process_count
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.recipe.settings import REWARD_MODEL, DiagnosisOptions
from grpo_verifiers.redaction import get_logger
from grpo_verifiers.rules import Condition, ConfigPart, PartRule, broken_rules, excludes, needs, notes, replaces

logger = get_logger("grpo_plus")


def _adapter(key: str) -> Condition:
    return lambda c: c.recipe.critic.on in {"trunk", "model"} and getattr(c.recipe.critic, key) is not None


def _noisy(key: str) -> Condition:
    return lambda c: c[f"engine.{key}"] not in {None, "auto", "stock"} and c.config.neftune_noise_alpha is not None


def _unjudged(key: str) -> Condition:
    plain = getattr(DiagnosisOptions(), key)
    return lambda c: c["diagnosis.judge"] is None and c[f"diagnosis.{key}"] not in (None, plain)


def _learning(key: str, when: Condition) -> Condition:
    return lambda c: key in (c.config.reward_model or {}) and when(c.recipe.reward_model)


# fmt: off
_SEVERAL = "Set num_generations to 2 or more, a divisor of the generation batch"
_BESIDE = (
    excludes("DeepSpeed", "it trains weights other than the policy's", way="Use DDP or one process",
             when=lambda c: c.deepspeed),
    excludes("FSDP", "it trains weights other than the policy's", way="Use DDP or one process", when=lambda c: c.fsdp),
    excludes("fp16", "it has a loss of its own, which no gradient scaler scales", way="Use bf16"),
)
_WEIGHING = (
    excludes("vllm_importance_sampling_correction", "nothing may weigh single tokens", way="Set it to false",
             when=lambda c: c.corrected),
    excludes("top_entropy_quantile", "nothing may drop single tokens"),
    excludes("off_policy_mask_threshold", "nothing may drop single tokens"),
)
_ALIKE = "TRL's own loss counts every row alike in {}, and rows of this one have weights"
_WEIGH = "Set objective, which weighs rows in all of its parts"
_SHARES = (
    excludes("beta", _ALIKE.format("the KL term"), way=_WEIGH, when=lambda c: c.config.beta),
    excludes("loss_type", _ALIKE.format("its count of tokens"), "bnpo", way=f"{_WEIGH} ('dapo', say)"),
    excludes("use_adaptive_entropy", _ALIKE.format("its entropy bonus"), way=_WEIGH),
    excludes("entropy_coef", _ALIKE.format("its entropy bonus"), way=_WEIGH),
)
SHARES = ConfigPart("A batch with weights of rows", bool, _SHARES)

PARTS = (
    ConfigPart("sync_ref_model", lambda c: c.config.sync_ref_model, (
        needs("beta", "with 0 there is no reference policy to refresh"),
    )),
    ConfigPart("TRL's own estimator", lambda c: c.config.advantage is None, (
        needs("num_generations of 2 or more", "it compares those of one prompt", when=lambda c: c.size == 1,
              way=_SEVERAL + ", or advantage to one that compares none, such as reinforce_pp"),
    )),
    ConfigPart("advantage {c[advantage]!r}", lambda c: c.config.advantage is not None, (
        replaces("scale_rewards", "the same is zscore, center, or {{name: zscore, scale: batch}}"),
        replaces("multi_objective_aggregation", "the same is gdpo"),
        needs("num_generations of 2 or more", "it compares those of one prompt",
              when=lambda c: c.size == 1 and any(part.group_relative for part, _ in c.recipe.estimator_parts),
              way=_SEVERAL + ", or advantage to one that compares none, such as reinforce_pp"),
        needs("more completions of a prompt", "num_generations is {c.size}", way="{c.too_few}",
              when=lambda c: c.too_few),
        needs("critic", "it reads a critic's values", way="Set critic: {{}}",
              when=lambda c: c.config.critic is None and c.reads_values),
        needs("an environment with state_key", "it compares turns that begin in the same state",
              way="Add the method (equal keys are equal states), or take {{name: process, credit: turn}}",
              when=lambda c: c.reads_states and not any(e.states for e in c.recipe.environments.values())),
    )),
    ConfigPart("critic", lambda c: c.recipe.critic is not None, (
        needs("advantage", "the estimator reads no values, so nothing would read it", way="Set advantage: gae",
              when=lambda c: not c.reads_values and (c.recipe.advantage or "advantage" not in c.recipe.names)),
        excludes("dead_groups", "advantages against a critic compare nothing in a group, so no group is dead"),
        *_BESIDE,
        needs("more max_steps", "the policy is not trained before step {c.recipe.critic.warmup_steps} (warmup_steps)",
              when=lambda c: 0 < c.config.max_steps <= c.recipe.critic.warmup_steps, way="Lower warmup_steps"),
        excludes("critic.model", "on ({c.recipe.critic.on}) is the policy", way="Set on: model, or remove model",
                 when=lambda c: c.recipe.critic.model is not None and c.recipe.critic.on in {"trunk", "adapter"}),
        excludes("critic.freeze", "on: trunk trains the head alone", way="Remove freeze",
                 when=lambda c: c.recipe.critic.on == "trunk" and c.recipe.critic.freeze),
        *(excludes(f"critic.{key}", "on ({c.recipe.critic.on}) has no adapter", way=f"Remove {key}",
                   when=_adapter(key)) for key in ("lora_r", "lora_alpha")),
        notes("the first {c.recipe.critic.warmup_steps} steps (warmup_steps) leave the policy and its schedule as they "
              "are, so the schedule ends as many steps early", lambda c: c.recipe.critic.warmup_steps),
    )),
    ConfigPart("dead_groups {c.recipe.dead_groups.name!r}", lambda c: c.dead, (
        excludes("kl placement 'reward'", "with the KL term no two rewards are equal, so no group would be dead",
                 way="Place the KL term in the loss", when=lambda c: c.objective and c.objective.kl_in_reward),
        needs("num_generations of 2 or more", "a group of one has no contrast that could be missed", way=_SEVERAL,
              when=lambda c: c.size == 1 and c.config.advantage is not None),
        excludes("num_generations", "contrast takes two completions, so there is no rest to save", 2,
                 way="Set it to 3 or more, or take resample", when=lambda c: c.dead == "roulette" and c.size == 2),
        notes("it decides what is in the batch, and the scale of the advantages is that of the entire batch",
              lambda c: any(part.over_the_batch(words) for part, words in c.recipe.estimator_parts)),
        needs("a smaller after", "after ({c.after}) of {c.size} completions there is no rest to save",
              way="Set after to at most num_generations - 1", when=lambda c: c.size > 2 and (c.after or 0) >= c.size),
        needs("a larger after", "after {c.after} completions all advantages would be 0",
              way="{c.too_few_after}, or after", when=lambda c: c.dead == "roulette" and c.too_few_after),
    )),
    ConfigPart("dead_groups 'replay'", lambda c: c.dead == "replay", (
        needs("an objective with a ratio", "{c.objective.name!r} reads no log-probabilities of the policy that drew, "
              "so nothing would correct for groups of an earlier one", way="Take 'grpo', say, or resample",
              when=lambda c: c.objective is not None and not reads_old_logps(c.objective)),
        excludes("selection", "its weights are those of the prompts of one batch, and make up for no bias of replay's",
                 when=lambda c: c.weighted,
                 way="Set weighted: false there, or take resample or roulette"),
        excludes("sync_ref_model", "replayed groups keep the log-probabilities of the reference that there was",
                 when=lambda c: c.config.sync_ref_model and c.config.beta),
        notes("it is biased: a bounded ratio makes up in part for groups of earlier policies, and their prompts count "
              "more often. Each generation batch is scored once more"),
    )),
    ConfigPart("dead_groups 'roulette', which gives rows weights,",
         lambda c: c.dead == "roulette" and c.config.objective is None, _SHARES),
    ConfigPart("selection {c[selection]!r}, which gives rows weights,",
         lambda c: c.weighted and c.config.objective is None, _SHARES),
    ConfigPart("selection {c[selection]!r}", lambda c: c.recipe.selection and c.recipe.selection.selection.draws, (
        excludes("shuffle_dataset", "it draws the prompts, and no order of the data is left"),
        excludes("dispatch_batches of accelerator_config", "it draws the prompts on every process",
                 way="Remove dispatch_batches", when=lambda c: c.accelerator.get("dispatch_batches")),
    )),
    ConfigPart("objective {c[objective]!r}", lambda c: c.config.objective is not None, (
        replaces("loss_type", "the same is objective"),
        replaces("epsilon", "the same is its epsilon_low"),
        replaces("epsilon_high", "the same is its epsilon_high (epsilon_max for cispo)"),
        replaces("delta", "the same is its delta"),
        replaces("importance_sampling_level", "the same is its ratio"),
        *(replaces(f"sapo_{key}", f"the same is {key} of sapo") for key in ("temperature_neg", "temperature_pos")),
        *(replaces(f"vespo_{key}", f"the same is {key} of vespo")
          for key in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")),
    )),
    ConfigPart("objective {c[objective]!r}", lambda c: c.objective is not None, (
        needs("importance weights per token", "it reads the sampler's",
              way="Set vllm_importance_sampling_mode to token_truncate or token_mask",
              when=lambda c: c.surrogate.weighs_itself and c.corrected and not c.by_token),
        excludes("rewards that are normalised each by itself ({c.each_reward})", "kl placement 'reward' takes the "
                 "divergence from their sum", way="Use placement 'loss'",
                 when=lambda c: c.objective.kl_in_reward and c.each_reward),
        needs("max_completion_length", "its reduction divides by it", way="Set it, or give the reduction its length",
              when=lambda c: c.config.max_completion_length is None and c.objective.reduce.piece.name == "constant"
              and c.objective.reduce.keywords.get("length") is None),
        needs("num_iterations of 2 or more", "stop_fraction ends inner iterations early",
              way="Set it, or remove stop_fraction",
              when=lambda c: c.stops and c.config.num_iterations < 2),
        needs("full optimizer steps an iteration", "stop_fraction skips full steps ({c.looks})",
              way="Make steps_per_generation a multiple of gradient_accumulation_steps, or remove stop_fraction",
              when=lambda c: c.stops and not c.full_iterations),
        excludes("fp16", "stop_fraction leaves steps without gradients, which its gradient scaler cannot take",
                 way="Use bf16, or remove stop_fraction", when=lambda c: c.stops and c.config.fp16),
        excludes("deepspeed", "stop_fraction leaves steps without gradients, which its engine cannot take",
                 way="Use DDP or FSDP, or remove stop_fraction", when=lambda c: c.stops and c.config.deepspeed),
        notes("top_entropy_quantile ({c.config.top_entropy_quantile:g}) takes the quantile of each micro-batch, so the "
              "gradient depends on how a batch is split", lambda c: c.config.top_entropy_quantile < 1),
        notes("router_aux_loss_coef ({c.config.router_aux_loss_coef:g}) balances the load of each micro-batch, so the "
              "gradient depends on how a batch is split", lambda c: getattr(c.config, "router_aux_loss_coef", None)),
        notes("it has no ratio (surrogate logp) and assumes on-policy samples, but {c.off_policy}: its gradient is "
              "biased after the first step",
              lambda c: c.off_policy and c.surrogate.name == "logp"),
        notes("the KL estimator {c.objective.kl.estimator.piece.name!r} without the ratio assumes on-policy samples, "
              "but {c.off_policy}: its gradient is biased after the first step", lambda c: c.off_policy
              and c.objective.kl_in_loss and c.objective.kl is not None and not c.objective.kl.unbiased),
        notes("{c.moot}: every ratio is 1, since the policy does not move while a generation batch is trained on "
              "({c.looks}), so this plays no part", lambda c: not c.off_policy and c.moot),
    )),
    ConfigPart("objective {c[objective]!r}, which sets a target for each probability,",
         lambda c: c.surrogate and c.surrogate.name == "target", (
        *_WEIGHING,
        needs("several optimizer steps a generation batch", "the first one knows the sign of each target only, and "
              "with {c.looks} there is no second", way="Set num_iterations to {c.least_iterations} or more",
              when=lambda c: not c.moves),
        needs("max_steps", "the first step knows the sign of each target only", way="Set it to 2 or more",
              when=lambda c: c.moves and 0 < c.config.max_steps < 2),
    )),
    ConfigPart("objective {c[objective]!r}, a loss of the completions of a group,",
         lambda c: c.surrogate and c.surrogate.pulls, (
        *_WEIGHING, needs("num_generations of 2 or more", "it compares them", way=_SEVERAL, when=lambda c: c.size == 1),
    )),
    ConfigPart("TRL's own loss ({c.config.loss_type})", lambda c: c.config.objective is None, (
        excludes("importance_sampling_level", "one ratio a completion has no meaning with advantages per {c.per}",
                 way="Set it to 'token', use objective 'gspo_token', or an estimator per completion",
                 when=lambda c: c.per != "completion" and c.config.importance_sampling_level != "token"),
        needs("max_completion_length", "it divides by it", way="Set it, or choose another loss_type",
              when=lambda c: c.config.max_completion_length is None and c.config.loss_type == "dr_grpo"),
    )),
    ConfigPart("off_policy_mask_threshold", lambda c: c.config.off_policy_mask_threshold is not None, (
        notes("it drops tokens with a negative advantage in completions that are far off-policy: with advantages per "
              "{c.per} these are single tokens, not completions", lambda c: c.per != "completion"),
    )),
    ConfigPart("Sampling with {c.reshaping}", lambda c: c.reshaping, (
        notes(UNSCORED),
    )),
    ConfigPart("engine", lambda c: c.config.engine != "auto", (
        *(excludes(f"engine.{key}", "with noise on embeddings (neftune_noise_alpha) every pass is TRL's own",
                   way="Leave it unset, or remove neftune_noise_alpha", when=_noisy(key))
          for key in ("layout", "tokens_per_pass")),
        excludes("engine.tokens_per_pass", "it works on a single device only, where no other process waits for a pass",
                 way="Leave it unset, or train in one process",
                 when=lambda c: c["engine.tokens_per_pass"] and (process_count() > 1 or c.fsdp or c.deepspeed)),
        excludes("engine.tokens_per_pass", "layout 'stock' is TRL's own path", way="Leave it unset, or choose a layout",
                 when=lambda c: c["engine.tokens_per_pass"] and c.recipe.engine.layout == "stock"),
    )),
    ConfigPart("rollout", lambda c: c.config.rollout is not None, (
        excludes("rollout.how", "{c.elsewhere} draws completions elsewhere", way="Leave it unset",
                 when=lambda c: c["rollout.how"] == "auto" and c.elsewhere),
        excludes("rollout.rows", "the completions are not sampled by rollout: auto",
                 way="Set how: auto, or leave it unset",
                 when=lambda c: c["rollout.rows"] is not None and c.recipe.rollout.how == "stock"),
        excludes("rollout.vllm_sync", "no vLLM server draws the completions", way="Set use_vllm: true and vllm_mode: "
                 "server, or leave it unset", when=lambda c: c["rollout.vllm_sync"]
                 and not (c.config.use_vllm and c.config.vllm_mode == "server")),
        notes("vllm_group_port is not read: vllm_sync takes the weights another way than through a group of processes",
              lambda c: c["vllm_group_port"] is not None and c["rollout.vllm_sync"] in {"files", "adapter"}),
        notes("the parameters are sharded (FSDP1, or ZeRO-3 without ds3_gather_for_generation), so TRL draws the "
              "completions, all rows at once", lambda c: c.sharded),
    )),
    ConfigPart("report.every", lambda c: c.recipe.report.every, (
        needs("the record", "a report needs it; it is on where a part of grpo_plus is set",
              way="Set report: {{record: true, …}}, or remove every", when=lambda c: not c.recipe.report.record),
    )),
    ConfigPart("diagnosis", bool, tuple(
        excludes(f"diagnosis.{key}", "there is no judge, so nothing would read it", way=f"Set judge, or remove {key}",
                 when=_unjudged(key)) for key in ("every", "sample", "against")
    )),
    ConfigPart("eval_verifiers", lambda c: c.config.eval_verifiers, (
        notes("they are not read: eval_strategy is 'no', so there is no evaluation but one that you start yourself",
              lambda c: c["eval_strategy"] is None and not c.config.eval_on_start),
    )),
    ConfigPart("reward_model", lambda c: c.recipe.reward_model is not None, (
        *(excludes(f"reward_model.{key}", why, way="Remove it", when=_learning(key, when))
          for keys, why, when in (
              ("pairs scale", "its head scores steps", lambda o: o.head == "process"),
              ("scale", "its weight is 0", lambda o: o.weight == 0),
              ("model", "it is no model of its own (on: model)", lambda o: o.on != "model"),
              ("lora_r", "it is a model of its own", lambda o: o.on == "model"),
              ("model lora_r", "start decides it", lambda o: o.start is not None),
              ("history", "replay is 0", lambda o: o.replay == 0),
              ("epochs batch_size learning_rate pairs replay history", "every is 0, so it is never trained",
               lambda o: o.every == 0),
          ) for key in keys.split()),
        excludes(f"the verifier label {REWARD_MODEL!r}", "it is the name of its column",
                 way="Give the verifier another label", when=lambda c: REWARD_MODEL in
                 [part.label for part in (*c.recipe.verifiers, *c.recipe.eval_verifiers)]),
        excludes("reward_model.weight", "reward_weights ({c.config.reward_weights}) has its weight, too",
                 way="Keep one of the two",
                 when=lambda c: c["reward_model.weight"] and c.config.reward_weights is not None),
        needs("a weight in reward_weights", "({c.config.reward_weights}) has 0 in the last place, which is its own",
              way="Set its weight to 0 and leave its place out, or give it a weight",
              when=lambda c: c.recipe.reward_model.weight is None),
        excludes("several verifiers that give steps ({c.sure_givers})", "head 'process' learns from one",
                 way="Keep one", when=lambda c: c.labels_steps and len(c.recipe.sure_givers) > 1),
        needs("a verifier that gives steps", "head 'process' learns from them, and no verifier gives any",
              way="Add one, such as {{name: math_steps, weight: 0}}",
              when=lambda c: c.labels_steps and all(gives is False for gives in c.recipe.step_givers.values())),
        needs("one verifier that surely gives steps", "head 'process' learns from them",
              way="Declare it of one", when=lambda c: c.labels_steps and not c.recipe.sure_givers
              and len(c.recipe.step_givers) > 1 and any(gives is None for gives in c.recipe.step_givers.values())),
        needs("every or start", "without both it would never learn anything",
              when=lambda c: c.recipe.reward_model.every == 0 and c.recipe.reward_model.start is None,
              way="Set every, or start to the folder of a reward model"),
        excludes("dead_groups", "of its rewards no two are equal, so no group would be dead",
                 way="Set its weight to 0, or remove dead_groups",
                 when=lambda c: c.recipe.reward_model.weight != 0 and c.dead),
        needs("num_generations of 2 or more", "it learns from pairs of them", way=_SEVERAL + ", or head to 'process'",
              when=lambda c: c.size == 1 and c.recipe.reward_model.head == "outcome" and c.recipe.reward_model.every),
        needs("num_generations of 2 or more", "its reward is the chance to beat the rest of its group",
              way="Set scale to 'sigmoid' or 'raw', or num_generations to 2 or more",
              when=lambda c: c.size == 1 and c.recipe.reward_model.weight != 0 and not c.labels_steps
              and c.recipe.reward_model.reward_scale == "wins" and not c.recipe.reward_model.every),
        *_BESIDE,
    )),
    ConfigPart("tools and environment", lambda c: c.config.tools or c.config.environment, (
        excludes("max_tool_calling_iterations", "no call would ever run", way="Raise it, or remove both",
                 when=lambda c: c.config.max_tool_calling_iterations == 0),
    )),
    ConfigPart("verifier turn_reward", lambda c: any(part.entry.name == "turn_reward" for part in
                                               (*c.recipe.verifiers, *c.recipe.eval_verifiers)), (
        needs("an environment with get_turn_reward", "it scores by that method", way="Add it, or take tool_valid or "
              "another verifier that scores turns by itself",
              when=lambda c: not any(part.turn_rewards for part in c.recipe.environments.values())),
    )),
    ConfigPart("verifier_column", lambda c: c.config.verifier_column is not None, (
        needs("verifiers", "it chooses from them"),
    )),
)
"""Parts of a config with their rules; an estimator, a selection and pieces of an objective bring more."""
# fmt: on


def parts_of(choice: ConfigFacts) -> Iterator[ConfigPart]:
    """All parts, with the rules that estimators, selections and pieces of an objective bring along."""
    yield from PARTS
    recipe = choice.recipe
    brought: list[tuple[str, tuple[PartRule, ...]]] = [(part.title, part.rules) for part, _ in recipe.estimator_parts]
    if recipe.selection is not None:
        brought.append((f"selection {recipe.selection.selection.name!r}", recipe.selection.selection.rules))
    if recipe.objective is not None:
        kinds = (recipe.objective.ratio, recipe.objective.surrogate, recipe.objective.reduce)
        brought += [(f"{part.piece.kind} {part.piece.name!r}", part.piece.rules) for part in kinds]
    yield from (ConfigPart(who, bool, rules) for who, rules in brought if rules)


def config_notes(config: Any) -> list[str]:
    """One sentence for each surprise; for `check` and for the log at the start of training."""
    choice = ConfigFacts(config, recipe_of(config))
    return broken_rules(parts_of(choice), choice, notes=True)


def say_notes(config: Any) -> None:
    """Log the notes on the main process."""
    if config.process_index == 0:
        for note in config_notes(config):
            logger.warning("note: %s", note)
