"""Settings migrated wrongly: every one of them stands in the resolved configuration."""

from __future__ import annotations

from align.core.rung import Rung
from align.stack.faults.fault import Fault

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model.override_config"
_ROLLOUT = "actor_rollout_ref.rollout"


def _setting(
    name: str,
    what: str,
    field_report: str,
    finding_id: str,
    *overrides: str,
    setting: tuple[str, ...] = (),
) -> Fault:
    return Fault(
        name,
        Rung.CONFIG,
        what,
        field_report,
        f"config.{finding_id}",
        ("config",),
        overrides,
        setting=setting,
    )


FAULTS = (
    _setting(
        "rms_norm_eps",
        "Every RMSNorm adds 1e-5, MindSpeed-RL's default, where the model's config.json says 1e-6.",
        "seed 000, report 35",
        "model.rms_norm_eps",
        f"{_MODEL}.rms_norm_eps=1e-5",
    ),
    _setting(
        "warmup_ratio",
        "The learning rate is not warmed up: the key has another name in the other framework.",
        "seed 000",
        "actor.lr_warmup_fraction",
        f"{_ACTOR}.optim.lr_warmup_steps_ratio=0.0",
    ),
    _setting(
        "mini_batch_times_n",
        "The mini-batch is given in responses where prompts are meant, so one update is made from "
        "a batch instead of several.",
        "seed 000, report 31",
        "actor.mini_batch_size",
        f"{_ACTOR}.ppo_mini_batch_size=16",
    ),
    _setting(
        "loss_aggregation",
        "Every sequence weighs the same in the loss, where every token should.",
        "report 32, report 38",
        "loss.aggregation",
        f"{_ACTOR}.loss_agg_mode=seq-mean-token-mean",
    ),
    _setting(
        "kl_coefficient",
        "The KL term of the loss weighs ten times as much.",
        "MindSpeed-RL defaults, against verl's",
        "loss.kl_coef",
        f"{_ACTOR}.kl_loss_coef=0.1",
    ),
    _setting(
        "kl_estimator",
        "The KL of the loss is estimated with k1, whose gradient has no expectation, not with k3.",
        "verl source: kl_loss_type against algorithm.kl_penalty",
        "loss.kl_type",
        f"{_ACTOR}.kl_loss_type=kl",
    ),
    _setting(
        "clip_ratio",
        "The probability ratio is clipped at 1.28 as in DAPO, not at 1.2.",
        "report 38",
        "loss.clip_ratio_high",
        f"{_ACTOR}.clip_ratio_high=0.28",
    ),
    _setting(
        "dual_clip",
        "Tokens with a negative advantage are not bounded: MindSpeed-RL has no dual clip.",
        "MindSpeed-RL source, verl's clip_ratio_c",
        "loss.dual_clip",
        f"{_ACTOR}.clip_ratio_c=1e9",
        setting=(f"{_ACTOR}.ppo_epochs=4", f"{_ACTOR}.clip_ratio_c=1.2"),
    ),
    _setting(
        "entropy_coefficient",
        "An entropy bonus is added to the loss, as verl up to 0.3 did unasked, where the reference "
        "has none.",
        "verl source: entropy_coeff is 0.001 up to 0.3, 0 from 0.4 on",
        "loss.entropy_coef",
        f"{_ACTOR}.entropy_coeff=0.01",
    ),
    _setting(
        "std_normalisation_off",
        "Advantages are not divided by the standard deviation of their group.",
        "verl source: norm_adv_by_std_in_grpo, Dr.GRPO",
        "advantage.normalize_by_std",
        "algorithm.norm_adv_by_std_in_grpo=false",
    ),
    _setting(
        "adam_betas",
        "Adam's beta2 is 0.95, as MindSpeed-RL's sample files have it, not 0.999.",
        "MindSpeed-RL sample configurations",
        "actor.adam_beta2",
        f"{_ACTOR}.optim.betas=[0.9,0.95]",
    ),
    _setting(
        "grad_clip",
        "Gradients are clipped at a norm of 0.1, not 1.",
        "verl source: actor.grad_clip is unread from 0.8 on",
        "actor.clip_grad",
        f"{_ACTOR}.optim.clip_grad=0.1",
    ),
    _setting(
        "logprobs_mode",
        "The engine returns log_probs of the whole vocabulary, not renormalised over the tokens "
        "that top-p keeps.",
        "report 11, verl's rollout.logprobs_mode",
        "rollout.logprobs_mode",
        f"{_ROLLOUT}.logprobs_mode=raw_logprobs",
        setting=(f"{_ROLLOUT}.top_p=0.8",),
    ),
    _setting(
        "rope_theta",
        "The rotary embedding has the base of another model: 1,000,000, not 10,000.",
        "MindSpeed-RL model files, report 45",
        "model.rope_theta",
        f"{_MODEL}.rope_theta=1000000",
    ),
    _setting(
        "tied_embeddings",
        "The output layer is tied to the embedding where the checkpoint has one of its own.",
        "report 37",
        "model.tie_word_embeddings",
        f"{_MODEL}.tie_word_embeddings=true",
    ),
    _setting(
        "dropout",
        "Attention weights are dropped with probability 0.1, MindSpeed-RL's default.",
        "MindSpeed-RL defaults",
        "model.attention_dropout",
        f"{_MODEL}.attention_dropout=0.1",
    ),
    _setting(
        "max_response_length",
        "Responses are cut at a shorter length.",
        "report 20, report 24",
        "data.max_response_length",
        "data.max_response_length=4",
    ),
    _setting(
        "rollout_temperature",
        "Responses are sampled at temperature 0.2, MindSpeed-RL's default.",
        "MindSpeed-RL defaults",
        "rollout.temperature",
        f"{_ROLLOUT}.temperature=0.2",
    ),
    _setting(
        "data_seed",
        "The rows are shuffled with another seed.",
        "seed 000",
        "data.seed",
        "data.seed=1",
    ),
    _setting(
        "loader_workers",
        "A loader process discards one permutation before every epoch, so the rows come in "
        "another order than without.",
        "verl from 0.7 on, read and run",
        "data.dataloader_num_workers",
        "data.dataloader_num_workers=1",
    ),
)
