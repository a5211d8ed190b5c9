"""TRL's rollout, objective and reference model in the units of the common schema."""

from __future__ import annotations

from align.core.config_value import ConfigLeaf
from align.frameworks.config_table import NOT_SET, Formula, NotSet, number
from align.frameworks.trl_training import PPO, TRAINING_FORMULAS, is_on, of, word_of

Value = ConfigLeaf | NotSet

_AGGREGATIONS = {
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "vespo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
_IMPORTANCE = {"token": "vanilla", "sequence": "gspo"}


def _loss_mode(kind: ConfigLeaf, level: ConfigLeaf) -> str:
    word = word_of(kind)
    if word in ("sapo", "cispo", "vespo", "luspo"):
        return word
    return _IMPORTANCE.get(word_of(level), str(level))


def _normalised_over(kind: ConfigLeaf) -> Value:
    over = {
        "bnpo": "micro-batch",
        "dapo": "mini-batch",
        "cispo": "mini-batch",
        "vespo": "mini-batch",
    }
    return over.get(word_of(kind), NOT_SET)


def _by_std(scale: ConfigLeaf) -> bool:
    return word_of(scale) in ("true", "group", "batch")


def _set(value: ConfigLeaf) -> Value:
    return NOT_SET if value is None else value


CONFIG_FORMULAS: tuple[Formula, ...] = (
    *TRAINING_FORMULAS,
    # rollout
    Formula(
        "rollout.engine",
        ("use_vllm",),
        lambda on: "vllm" if is_on(on) else "transformers",
        "use_vllm, else transformers' generate",
    ),
    Formula("rollout.engine", ("config_class",), of(PPO, "transformers"), "PPOTrainer"),
    Formula(
        "rollout.dtype",
        ("vllm_dtype",),
        lambda dtype: NOT_SET if dtype in (None, "auto") else dtype,
        "vllm_dtype",
    ),
    Formula(
        "rollout.top_k",
        ("top_k",),
        lambda k: -1 if not number(k) or (number(k) or 0) < 0 else k,
        "0 and null switch top_k off",
    ),
    Formula("rollout.min_p", ("min_p",), lambda p: 0.0 if p is None else p, "null is off"),
    Formula(
        "rollout.do_sample",
        ("num_generations",),
        lambda n: True,
        "GRPOTrainer always samples",
    ),
    # data
    Formula(
        "data.seed",
        ("num_generations", "seed"),
        lambda n, seed: seed,
        "GRPOTrainer's sampler takes seed",
    ),
    Formula(
        "data.seed",
        ("data_seed", "seed"),
        lambda own, seed: seed if own is None else own,
        "data_seed, else seed",
    ),
    # model
    Formula(
        "model.lora_rank",
        ("use_peft", "lora_r"),
        lambda on, rank: rank if is_on(on) else 0,
        "lora_r where use_peft is on",
    ),
    # GRPO
    Formula("advantage.estimator", ("num_generations",), lambda n: "grpo", "GRPOTrainer"),
    Formula(
        "advantage.normalize_by_std",
        ("scale_rewards",),
        _by_std,
        "scale_rewards: group or batch (true) divides, none (false) does not",
    ),
    Formula(
        "advantage.std_eps",
        ("scale_rewards",),
        lambda scale: 1e-4 if _by_std(scale) else NOT_SET,
        "GRPOTrainer adds 1e-4 to the deviation",
    ),
    Formula(
        "advantage.options.scale_rewards",
        ("scale_rewards",),
        lambda scale: {"true": "group", "false": "none"}.get(word_of(scale), word_of(scale)),
        "scale_rewards",
    ),
    Formula(
        "loss.use_kl",
        ("num_generations", "beta"),
        lambda n, beta: number(beta) != 0,
        "beta is not 0",
    ),
    Formula(
        "ref.used",
        ("num_generations", "beta"),
        lambda n, beta: number(beta) != 0,
        "no reference model is loaded where beta is 0",
    ),
    Formula(
        "loss.kl_type",
        ("num_generations",),
        lambda n: "low_var_kl",
        "GRPOTrainer has this estimator only",
    ),
    Formula(
        "loss.clip_ratio_high",
        ("epsilon", "epsilon_high"),
        lambda low, high: low if high is None else high,
        "epsilon_high, else epsilon",
    ),
    Formula("loss.clip_ratio_high", ("cliprange",), _set, "cliprange bounds both sides"),
    Formula(
        "loss.dual_clip",
        ("delta",),
        lambda delta: "none" if delta is None else delta,
        "delta, off where null",
    ),
    Formula(
        "loss.aggregation",
        ("num_generations", "loss_type"),
        lambda n, kind: _AGGREGATIONS.get(word_of(kind), NOT_SET),
        "loss_type: grpo means each response, bnpo and dapo all tokens, dr_grpo divides by a "
        "constant",
    ),
    Formula(
        "loss.normalization",
        ("loss_type",),
        _normalised_over,
        "bnpo averages within a micro-batch, dapo over all micro-batches of an optimizer step",
    ),
    Formula(
        "loss.scale_factor",
        ("loss_type", "max_completion_length"),
        lambda kind, length: length if word_of(kind) == "dr_grpo" else NOT_SET,
        "dr_grpo divides by max_completion_length",
    ),
    Formula(
        "loss.mode",
        ("loss_type", "importance_sampling_level"),
        _loss_mode,
        "importance_sampling_level; sapo, cispo and vespo are losses of their own",
    ),
    # PPO
    Formula("advantage.estimator", ("config_class",), of(PPO, "gae"), "PPOTrainer"),
    Formula("critic.used", ("config_class",), of(PPO, True), "PPOTrainer trains a critic"),
    Formula("critic.used", ("num_generations",), lambda n: False, "GRPOTrainer has no critic"),
    Formula(
        "critic.lr",
        ("config_class", "learning_rate"),
        lambda owner, lr: lr if owner == PPO else NOT_SET,
        "PPOTrainer updates both with one optimizer",
    ),
    Formula(
        "reward.use_kl_in_reward",
        ("config_class",),
        lambda owner: {PPO: True, "GRPOConfig": False}.get(owner, NOT_SET),
        "PPOTrainer has the KL term in the reward, GRPOTrainer in the loss",
    ),
    Formula(
        "reward.kl_penalty",
        ("kl_estimator",),
        lambda kind: {"k1": "kl", "k3": "low_var_kl"}.get(kind, NOT_SET),
        "k1 is kl, k3 is low_var_kl",
    ),
    Formula("loss.use_kl", ("config_class",), of(PPO, False), "PPOTrainer"),
    Formula("loss.aggregation", ("config_class",), of(PPO, "token-mean"), "PPOTrainer"),
)
