"""A GRPO run of TRL with a fault planted into the process that trains: MODEL OUT PLANT KEY=VALUE...

``PLANT`` names one of `FAULTS`, ``other_draws`` or ``nothing``; no configuration and no log line
shows it. The run is that of `grpo_run.py` with two updates a generation, so that ratios differ
from 1, several micro-batches an update, and responses of different lengths.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
import yaml
from trl import GRPOTrainer

from tests.frameworks.layer_faults import LAYER_FAULTS
from tests.frameworks.trl import grpo_run

Made = Callable[..., Any]
trainer_module = import_module("trl.trainer.grpo_trainer")
adam_module = import_module("torch.optim.adam")
clipping_module = import_module("torch.nn.utils.clip_grad")
model_module = import_module("transformers.models.qwen2.modeling_qwen2")

SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "num_generations": 4,
    "num_iterations": 2,
    "max_completion_length": 16,
    "max_steps": 4,
    "beta": 0.05,
    "weight_decay": 0.1,
    "lr_scheduler_type": "constant",
    # the model ends one response in 371 of its own accord: by this, one token in twenty
    "generation_kwargs": {"sequence_bias": [[[2], 3.0]]},
}


def replaced(owner: Any, name: str, make: Callable[[Made], Made]) -> None:
    """Put what ``make`` makes of a function in its place."""
    own = getattr(owner, name)
    setattr(owner, name, functools.wraps(own)(make(own)))


def rewritten(function: Any, *changes: tuple[str, str]) -> None:
    """Give a method other lines, below all that looks at its calls: its code is exchanged."""
    method = inspect.unwrap(function)
    source = inspect.getsource(method)
    for old, new in changes:
        assert old in source, f"{method.__qualname__} has no {old!r}"
        source = source.replace(old, new)
    names: dict[str, Any] = {}
    exec(f"class Owner:\n{source}", method.__globals__, names)
    method.__code__ = inspect.unwrap(vars(names["Owner"])[method.__name__]).__code__


def with_trainer(change: Callable[[Any], None]) -> None:
    """Change the trainer once it is built."""

    def make(build: Made) -> Made:
        def built(self: Any, *args: Any, **kwargs: Any) -> None:
            build(self, *args, **kwargs)
            change(self)

        return built

    replaced(GRPOTrainer, "__init__", make)


def with_model(change: Callable[[Any], None]) -> None:
    """Change the layers of the model and of the reference model."""

    def both(trainer: Any) -> None:
        for model in (trainer.model, trainer.ref_model):
            change(model.model.layers)

    with_trainer(both)


def with_optimizer(change: Callable[[Any], None]) -> None:
    """Change the optimizer once it is built."""

    def make(build: Made) -> Made:
        def built(self: Any, *args: Any, **kwargs: Any) -> Any:
            optimizer = build(self, *args, **kwargs)
            change(self.optimizer)
            return optimizer

        return built

    replaced(transformers.Trainer, "create_optimizer", make)


def wrong_groups() -> None:
    """Rows are grouped with the next prompt's first row."""
    rewritten(
        GRPOTrainer._generate_and_score_completions,
        ("rewards.view(-1, num_generations)", "rewards.roll(1).view(-1, num_generations)"),
        (
            "repeat_interleave(num_generations, dim=0)",
            "repeat_interleave(num_generations).roll(-1)",
        ),
    )


def std_left_out() -> None:
    """Advantages are not divided by the group's standard deviation."""
    rewritten(
        GRPOTrainer._generate_and_score_completions,
        ("advantages = advantages / (std_rewards + 1e-4)", "pass"),
    )


def rewards_rolled() -> None:
    """Each row trains on the score of the row before."""
    scored = "self._calculate_rewards(inputs, prompts, completions, completion_ids_list)"
    rewritten(
        GRPOTrainer._generate_and_score_completions,
        (f"rewards_per_func = {scored}", f"rewards_per_func = {scored}.roll(1, 0)"),
    )


def scores_moved() -> None:
    """Each row is given the score of the row before."""
    rewritten(
        GRPOTrainer._calculate_rewards,
        ("return rewards_per_func", "return rewards_per_func.roll(1, 0)"),
    )


def weak_extraction() -> None:
    """The reward function misses some replies."""

    def make(own: Made) -> Made:
        def scored(completions: list[str], **kwargs: Any) -> list[float]:
            found = own(completions, **kwargs)
            return [0.0 if len(c) % 4 == 0 else f for c, f in zip(completions, found, strict=True)]

        return scored

    replaced(grpo_run, "variety", make)


def kl_sign() -> None:
    """The KL term pushes away from the reference."""
    rewritten(
        GRPOTrainer._compute_loss,
        ("per_token_loss + self.beta * per_token_kl", "per_token_loss - self.beta * per_token_kl"),
    )


def kl_estimator() -> None:
    """k1 in place of TRL's only estimator."""
    rewritten(
        GRPOTrainer._compute_loss,
        (
            "torch.exp(ref_per_token_logps - per_token_logps) "
            "- (ref_per_token_logps - per_token_logps) - 1",
            "per_token_logps - ref_per_token_logps",
        ),
    )


def aggregation() -> None:
    """The loss is averaged by sequence, then over sequences."""
    rewritten(
        GRPOTrainer._compute_loss,
        (
            "loss = (per_token_loss * mask).sum() / normalizer",
            "loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1)).mean() "
            "/ self.current_gradient_accumulation_steps",
        ),
    )


def clip_range() -> None:
    """The ratio is clipped at a tenth of the configured range."""

    def change(trainer: Any) -> None:
        trainer.epsilon_low, trainer.epsilon_high = (
            trainer.epsilon_low / 10,
            trainer.epsilon_high / 10,
        )

    with_trainer(change)


def mask_shifted() -> None:
    """The loss is of the tokens one place before those generated."""
    rewritten(
        GRPOTrainer._compute_loss,
        (
            'mask = completion_mask if "tool_mask" not in inputs',
            'mask = nn.functional.pad(completion_mask[:, 1:], (0, 1)) if "tool_mask" not in inputs',
        ),
    )


def temperature_missing() -> None:
    """log_probs are of the logits as they are."""

    def make(own: Made) -> Made:
        return lambda *args, temperature, **kwargs: own(*args, **kwargs)

    replaced(trainer_module, "add_fused_lm_head", make)


def loss_doubled() -> None:
    """The gradient is that of twice the loss."""

    def make(own: Made) -> Made:
        return lambda self, loss, **kwargs: own(self, loss * 2, **kwargs)

    replaced(accelerate.Accelerator, "backward", make)


def lost_micro_batch() -> None:
    """Each micro-batch's gradient takes the place of the one before."""

    def make(own: Made) -> Made:
        def stepped(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            model.zero_grad()
            return own(self, model, *args, **kwargs)

        return stepped

    replaced(GRPOTrainer, "training_step", make)


def vectors_decayed() -> None:
    """Weight decay takes norms and biases too, which transformers leaves alone."""

    def make(own: Made) -> Made:
        return lambda self, model, *args: [name for name, _ in model.named_parameters()]

    replaced(transformers.Trainer, "get_decay_parameter_names", make)


def states_bfloat16() -> None:
    """Adam's moments are kept in bfloat16."""

    def rounded(optimizer: Any, *_: Any) -> None:
        for state in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].copy_(state[name].bfloat16())

    with_optimizer(lambda optimizer: optimizer.register_step_post_hook(rounded))


def adam_epsilon() -> None:
    """Adam adds 1e-5 where torch adds 1e-8."""

    def change(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["eps"] = 1e-5

    with_optimizer(change)


def rate_halved() -> None:
    """The learning rate falls to a half after the first update."""

    def make(own: Made) -> Made:
        def built(self: Any, num_training_steps: int, optimizer: Any = None) -> Any:
            optimizer = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: 1.0 if step < 1 else 0.5
            )
            self._created_lr_scheduler = True
            return self.lr_scheduler

        return built

    replaced(transformers.Trainer, "create_scheduler", make)


def reversed_order() -> None:
    """The rows of an epoch come from the last to the first."""
    sampler = trainer_module.RepeatSampler
    rewritten(
        sampler.__iter__,
        ("generator=self.generator).tolist()", "generator=self.generator).tolist()[::-1]"),
    )


def prompt_token_lost() -> None:
    """Prompts reach training without their first token."""
    rewritten(
        GRPOTrainer._generate_and_score_completions,
        (
            "        # Convert lists of token IDs to padded tensors\n",
            "        prompt_ids_list = [ids[1:] for ids in prompt_ids_list]\n",
        ),
    )


def response_cut() -> None:
    """Responses reach training without their last token."""
    rewritten(
        GRPOTrainer._generate_and_score_completions,
        (
            "        # Convert lists of token IDs to padded tensors\n",
            "        completion_ids_list = [ids[:-1] or ids for ids in completion_ids_list]\n",
        ),
    )


def biased_std() -> None:
    """Advantages are divided by the standard deviation of the group as a whole population."""
    rewritten(
        GRPOTrainer._generate_and_score_completions,
        (
            "nanstd(rewards.view(-1, num_generations), dim=1)",
            "rewards.view(-1, num_generations).std(dim=1, correction=0)",
        ),
    )


def truncated_scored_zero() -> None:
    """Responses that have no end score 0."""
    rewritten(
        GRPOTrainer._calculate_rewards,
        (
            "return rewards_per_func",
            "return rewards_per_func * torch.tensor("
            "[[float(self.eos_token_ids[0] in ids)] for ids in completion_ids_list])",
        ),
    )


def after_eos() -> None:
    """Responses go on after their eos, as far as the longest of the batch."""
    rewritten(
        GRPOTrainer._generate_single_turn,
        ("(sequence_indices <= eos_idx.unsqueeze(1))", "(sequence_indices >= 0)"),
    )


def template_space() -> None:
    """Prompts end with a space that is not in the data."""
    rewritten(
        GRPOTrainer._tokenize_prompts,
        (
            "self.processing_class(text=prompts)",
            "self.processing_class(text=[prompt + ' ' for prompt in prompts])",
        ),
    )


def old_log_probs_renewed() -> None:
    """Every update takes its own log_probs for the old ones: the ratio is always 1."""
    rewritten(
        GRPOTrainer._compute_loss,
        ('inputs.get("old_per_token_logps")', "None"),
    )


def ratio_by_sequence() -> None:
    """The ratio is that of a sequence's mean log_prob, where it should be each token's."""
    rewritten(
        GRPOTrainer._compute_loss,
        ('if self.importance_sampling_level == "token":', "if False:"),
        ('elif self.importance_sampling_level == "sequence":', "elif True:"),
    )


def low_clip_missing() -> None:
    """The ratio is clipped only from above."""
    rewritten(
        GRPOTrainer._compute_loss,
        (
            "torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)",
            "torch.clamp(coef_1, max=1 + self.epsilon_high)",
        ),
    )


def reference_follows() -> None:
    """The reference model gets the trained weights with every generation."""
    rewritten(
        GRPOTrainer._generate_and_score_completions,
        (
            "# Compute the per-token log probabilities for the reference model\n",
            "self.ref_model.load_state_dict(self.model.state_dict())\n",
        ),
    )


def interleaved_rotary() -> None:
    """Rotary embeddings turn neighbours, by the angles of the two halves of a head."""

    def make(own: Made) -> Made:
        return lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)

    replaced(model_module, "rotate_half", make)


def norm_gradient() -> None:
    """The backward pass of one norm takes the mean square for a constant."""

    def change(layers: Any) -> None:
        norm = layers[1].post_attention_layernorm

        def forward(x: Any) -> Any:
            mean = x.pow(2).mean(-1, keepdim=True)
            return norm.weight * (x * torch.rsqrt(mean + norm.variance_epsilon).detach())

        norm.forward = forward

    with_model(change)


def stale_gradients() -> None:
    """Gradients are not set to zero after an update."""

    def change(trainer: Any) -> None:
        trainer.model.zero_grad = lambda *args, **kwargs: None

    with_trainer(change)


def always_clipped() -> None:
    """Gradients are scaled to the largest norm allowed, smaller ones too."""

    def make(own: Made) -> Made:
        def scaled(parameters: Any, limit: float, norm: Any, *args: Any) -> None:
            for parameter in parameters:
                parameter.grad.mul_(limit / (norm + 1e-6))

        return scaled

    replaced(clipping_module, "_clip_grads_with_norm_", make)


def with_fused_adam(change: Callable[..., None]) -> None:
    """Put a function in the place of Adam's kernel, which it is given with the kernel's tensors."""
    replaced(adam_module, "_fused_adam", lambda own: functools.partial(change, own))


def bias_correction_missing() -> None:
    """Adam does not correct its moments for their start at zero."""

    def change(own: Made, *tensors: Any, **kwargs: Any) -> None:
        *states, steps = tensors
        own(*states, [step + 1e6 for step in steps], **kwargs)
        for step in steps:
            step += 1

    with_fused_adam(change)


def weights_bfloat16() -> None:
    """Updated weights are kept in bfloat16."""

    def change(own: Made, weights: Any, *tensors: Any, **kwargs: Any) -> None:
        own(weights, *tensors, **kwargs)
        for weight in weights:
            weight.copy_(weight.bfloat16())

    with_fused_adam(change)


def other_draws() -> None:
    """Responses are sampled with another seed: no fault."""

    def make(own: Made) -> Made:
        def generated(self: Any, *args: Any, **kwargs: Any) -> Any:
            torch.manual_seed(99 + self.state.global_step)
            return own(self, *args, **kwargs)

        return generated

    replaced(GRPOTrainer, "_generate_single_turn", make)


def nothing() -> None:
    """The run as it is."""


FAULTS: dict[str, Callable[[], None]] = {
    **{name: functools.partial(with_model, change) for name, change in LAYER_FAULTS.items()},
    **{
        fault.__name__: fault
        for fault in (
            *(wrong_groups, std_left_out, rewards_rolled, scores_moved, weak_extraction),
            *(kl_sign, kl_estimator, aggregation, clip_range, mask_shifted),
            *(temperature_missing, loss_doubled, lost_micro_batch),
            *(vectors_decayed, states_bfloat16, adam_epsilon, rate_halved),
            *(reversed_order, prompt_token_lost, response_cut),
            *(biased_std, truncated_scored_zero, after_eos, template_space),
            *(old_log_probs_renewed, ratio_by_sequence, low_clip_missing, reference_follows),
            *(interleaved_rotary, norm_gradient, stale_gradients),
            *(always_clipped, bias_correction_missing, weights_bfloat16),
        )
    },
}
"""Each function's docstring says what it plants."""

PLANTS = {**FAULTS, "other_draws": other_draws, "nothing": nothing}


def main(model: str, out: Path, plant: str, *settings: str) -> None:
    """Plant, and train.

    Args:
        settings: of GRPOConfig, each as KEY=VALUE.
    """
    PLANTS[plant]()
    given = (text.partition("=") for text in settings)
    grpo_run.main(model, out, settings=SETTINGS | {k: yaml.safe_load(v) for k, _, v in given})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
