"""What each rung needs, and how to record it: by `align capture` where it can, else by hand."""

from __future__ import annotations

from align.core.rung import Missing, Rung
from align.core.text import Text

_CAPTURE = Text(
    "`align capture -o RUN -- CMD` records it (verl, MindSpeed-RL, TRL; see "
    "docs/how-to/capture.md). Or: ",
    "`align capture -o RUN -- CMD` 会记录它"
    "（verl、MindSpeed-RL、TRL；见 docs/how-to/capture.zh.md）。或者：",
)
_CAPTURED = frozenset(
    {Rung.ROLLOUT, Rung.TOKENS, Rung.REWARD, Rung.ADVANTAGE, Rung.LOSS, Rung.BACKWARD}
)

_SKETCHES = Text(
    "On verl 0.9, MindSpeed-RL and TRL: `align capture -o RUN --what sketches -- CMD`. "
    "`align train` records them in the first three steps and the last (stack.record_sketches); "
    "around a step of another training loop use dumps.capture.sketch.step.sketched_step.",
    "verl 0.9、MindSpeed-RL 与 TRL：`align capture -o RUN --what sketches -- CMD`。"
    "`align train` 会在前三步与最后一步记录（stack.record_sketches）；"
    "其他训练循环可在一个 step 外使用 dumps.capture.sketch.step.sketched_step。",
)

_ARTIFACTS: dict[Rung, tuple[Text, Text]] = {
    Rung.ENVIRONMENT: (
        Text("versions of the stack", "软件栈版本"),
        Text(
            "Keep the console log from the start of the run, or state versions in align-run.json "
            "(`align run init RUN`).",
            "保留从启动开始的控制台日志，或在 align-run.json 中写明版本（`align run init RUN`）。",
        ),
    ),
    Rung.CONFIG: (
        Text("the run's configuration", "运行配置"),
        Text(
            "Keep verl's outputs/DATE/TIME/.hydra folder or its console log, or MindSpeed-RL's "
            "YAML with its model file.",
            "保留 verl 的 outputs/DATE/TIME/.hydra 目录或控制台日志，"
            "或 MindSpeed-RL 的 YAML 及其模型文件。",
        ),
    ),
    Rung.TOKENIZER: (
        Text(
            "model and tokenizer files that state eos and pad",
            "声明 eos 与 pad 的模型与分词器文件",
        ),
        Text(
            "Copy config.json, generation_config.json, tokenizer_config.json, tokenizer.json and "
            "chat_template.jinja, or what there is of them, of the folder each run really loads "
            "into its run folder.",
            "把每次运行真正加载的目录中的 config.json、generation_config.json、"
            "tokenizer_config.json、tokenizer.json 与 chat_template.jinja（有哪些就复制哪些）"
            "复制到其运行目录。",
        ),
    ),
    Rung.DATA: (
        Text("prompts per step", "每步的 prompt"),
        Text(
            "Set trainer.rollout_data_dir=DIR (verl 0.4 and later), or keep the metrics "
            "prompt_length/mean, max and min.",
            "设置 trainer.rollout_data_dir=DIR（verl 0.4 及以上），"
            "或保留 prompt_length/mean、max、min 指标。",
        ),
    ),
    Rung.ROLLOUT: (
        Text("rollout dumps", "rollout 数据"),
        Text(
            "Set trainer.rollout_data_dir=DIR (verl 0.4 and later); in MindSpeed-RL write prompt, "
            "response, label and score as JSON lines in the verifier.",
            "设置 trainer.rollout_data_dir=DIR（verl 0.4 及以上）；在 MindSpeed-RL 的 verifier 中"
            "把 prompt、response、label、得分逐行写成 JSON。",
        ),
    ),
    Rung.TOKENS: (
        Text(
            "trainer inputs (input_ids, attention_mask, position_ids, responses, response_mask) "
            "and the rollout engine's token ids",
            "训练输入（input_ids、attention_mask、position_ids、responses、response_mask）"
            "与推理引擎的 token id",
        ),
        Text(
            "Save these tensors of a step as trainer_inputs/STEP.safetensors, and add prompt_ids, "
            "response_ids and finish_reason to that step's rollout dump; `align train` does both.",
            "把一个 step 的这些张量保存为 trainer_inputs/STEP.safetensors，"
            "并在该 step 的 rollout 数据中加入 prompt_ids、response_ids 与 finish_reason；"
            "`align train` 会同时记录两者。",
        ),
    ),
    Rung.FORWARD: (
        Text(
            "tensor sketches of one step, with the same tokens and weights on both sides",
            "同一 step 的张量摘要，两侧 token 与权重相同",
        ),
        _SKETCHES,
    ),
    Rung.REWARD: (
        Text("rollout dumps with scores", "带得分的 rollout 数据"),
        Text(
            "Set trainer.rollout_data_dir=DIR (verl 0.4 and later) on both sides.",
            "在两侧设置 trainer.rollout_data_dir=DIR（verl 0.4 及以上）。",
        ),
    ),
    Rung.ADVANTAGE: (
        Text(
            "token_level_rewards and advantages per row, and the rollouts they belong to",
            "每行的 token_level_rewards 与 advantages，以及对应的 rollout",
        ),
        Text(
            "Add token_level_rewards and advantages to trainer_inputs/STEP.safetensors, beside the "
            "rollout dump with uid, prompt_ids and response_ids; `align train` does both.",
            "在 trainer_inputs/STEP.safetensors 中加入 token_level_rewards 与 advantages，"
            "并保留带 uid、prompt_ids、response_ids 的 rollout 数据；"
            "`align train` 会同时记录两者。",
        ),
    ),
    Rung.LOSS: (
        Text(
            "log_probs of every update with its reported losses, beside the trainer inputs",
            "每次更新的 log_probs 与所报告的损失，以及对应的训练输入",
        ),
        Text(
            "Save rows, update, micro_batch and log_probs of every update, and its actor/loss, "
            "actor/pg_loss and actor/kl_loss, as updates/STEP.safetensors beside "
            "trainer_inputs/STEP.safetensors with old_log_probs, ref_log_prob and advantages; "
            "`align train` does both. With one update a step the trainer inputs and the logged "
            "losses are enough.",
            "把每次更新的 rows、update、micro_batch、log_probs 以及 actor/loss、actor/pg_loss、"
            "actor/kl_loss 存为 updates/STEP.safetensors，并保留含 old_log_probs、ref_log_prob、"
            "advantages 的 trainer_inputs/STEP.safetensors；`align train` 会同时记录两者。"
            "每步只更新一次时，训练输入与日志中的损失即可。",
        ),
    ),
    Rung.BACKWARD: (
        Text("gradients or gradient norms of every update", "每次更新的梯度或梯度范数"),
        Text(
            "Run one step from the same weights and the same rollouts on both sides, and keep the "
            "norm of all gradients before clipping as align/norm_of_gradients in "
            "updates/STEP.safetensors; `align train` does it.",
            "在两侧用相同权重与相同 rollout 运行一个 step，并把裁剪前全部梯度的范数以 "
            "align/norm_of_gradients 存入 updates/STEP.safetensors；`align train` 会记录它。",
        ),
    ),
    Rung.OPTIMIZER: (
        Text(
            "the learning rate of every step, and the configuration with its schedule",
            "每步的学习率，以及含学习率曲线的完整配置",
        ),
        Text(
            "Keep the console log, which prints the configuration and actor/lr, and set "
            "trainer.total_training_steps (verl) or train_iters (MindSpeed-RL).",
            "保留打印了配置与 actor/lr 的控制台日志，"
            "并设置 trainer.total_training_steps（verl）或 train_iters（MindSpeed-RL）。",
        ),
    ),
    Rung.WEIGHT_SYNC: (
        Text(
            "sketches of the weights in the trainer and in the rollout engine after a sync",
            "同步之后训练侧与推理引擎权重的张量摘要",
        ),
        _SKETCHES,
    ),
    Rung.CURVES: (
        Text("metrics over steps", "逐步指标"),
        Text(
            "Keep the console log, or set trainer.logger to include file or tensorboard.",
            "保留控制台日志，或在 trainer.logger 中加入 file 或 tensorboard。",
        ),
    ),
    Rung.EVALS: (
        Text("benchmark results of both models", "两侧模型的评测结果"),
        Text(
            "Run the same lm-eval, OpenCompass or evalscope task with the same generation "
            "settings on both and keep the result files.",
            "在两侧用相同的生成参数运行同一 lm-eval、OpenCompass 或 evalscope 任务，"
            "并保留结果文件。",
        ),
    ),
}


def missing_artifact(rung: Rung, side: str = "both") -> Missing:
    """Return what a run lacks for a rung, and how to record it."""
    artifact, by_hand = _ARTIFACTS[rung]
    if rung not in _CAPTURED:
        return Missing(artifact, side, by_hand)
    how = Text(f"{_CAPTURE.en}{by_hand.en}", f"{_CAPTURE.zh}{by_hand.zh}")
    return Missing(artifact, side, how)
