"""Reports made up for tests: one small with everything that is awkward, one of 500 steps."""

from __future__ import annotations

import math

import numpy as np

from align.core.figure import Column, Curve, CurvePair, Table
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength, Symptom
from align.core.report import Report, RunSummary
from align.core.rung import RUNGS, Missing, Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.verdict import Confidence, Verdict, VerdictStatus

HOSTILE = """<script>alert("x")</script> & '|' `tick` ${7*7} {{ 7*7 }} ]]> --> </style> \x1b[31m"""
LONG_PATH = "/data/" + "very_long_folder_name_without_any_break/" * 6 + "训练日志.out"
METRICS = (
    *("critic/score/mean", "critic/rewards/mean", "actor/kl_loss", "actor/entropy"),
    *("actor/pg_loss", "actor/grad_norm", "actor/lr", "actor/ppo_kl", "response_length/mean"),
    *("response_length/clip_ratio", "prompt_length/mean", "timing_s/step"),
)


def awkward_report() -> Report:
    """Make a small report with every status and severity, NaN, Chinese and hostile text."""
    results = {
        Rung.ENVIRONMENT: RungResult(
            Rung.ENVIRONMENT,
            RungStatus.UNDECIDED,
            Text("vllm differs; torch agrees", "vllm 版本不同；torch 一致"),
            findings=(_environment_finding(),),
        ),
        Rung.CONFIG: RungResult(
            Rung.CONFIG,
            RungStatus.DIVERGED,
            Text("1 of 214 effective values differs", "214 个有效值中有 1 个不同"),
            findings=(_config_finding(), _hostile_finding()),
            missing=(
                Missing(
                    Text("model config.json", "模型 config.json"),
                    "candidate",
                    Text("put it beside the log: `cp MODEL/config.json RUN/`", "放到日志旁边"),
                ),
            ),
            tables=(_awkward_table(),),
        ),
        Rung.ROLLOUT: RungResult(
            Rung.ROLLOUT, RungStatus.ALIGNED, Text("64 responses agree", "64 条回答一致")
        ),
        Rung.CURVES: RungResult(
            Rung.CURVES,
            RungStatus.DIVERGED,
            Text("critic/score/mean leaves from step 3", "critic/score/mean 从第 3 步起偏离"),
            findings=(_curve_finding(),),
            curves=(_short_pair(), _empty_pair()),
        ),
    }
    return Report(
        reference=RunSummary(LONG_PATH, "verl", "0.9.1", "cuda", 1, 5, 3, ()),
        candidate=RunSummary(
            HOSTILE, None, None, None, None, None, 0, (HOSTILE, LONG_PATH), (HOSTILE,)
        ),
        verdict=Verdict(
            status=VerdictStatus.DIVERGED,
            rung=Rung.CONFIG,
            finding_id="config.model.rms_norm_eps",
            sentence=Text(
                "The runs part at the configuration: rms_norm_eps is 1e-5 against 1e-6.",
                "两次运行在配置处分开：rms_norm_eps 为 1e-5，而参考为 1e-6。",
            ),
            cause=Text(f"rms_norm_eps differs {HOSTILE}", f"rms_norm_eps 不同 {HOSTILE}"),
            confidence=Confidence.HIGH,
            fix=Text("Set `--norm-epsilon 1e-6`.", "设置 `--norm-epsilon 1e-6`。"),
            next_step=Text("Run 20 steps again.", "再跑 20 步。"),
            not_recorded=(Rung.TOKENIZER, Rung.DATA),
        ),
        rungs=tuple(results.get(rung, _missing(rung)) for rung in RUNGS),
    )


def long_report(num_steps: int = 500, num_rows: int = 655, num_findings: int = 40) -> Report:
    """Make a report of the size of two real runs: 12 metrics, a table of all config leaves."""
    generator = np.random.default_rng(7)
    config_findings = tuple(_numbered_finding(i) for i in range(num_findings))
    results = {
        Rung.CONFIG: RungResult(
            Rung.CONFIG,
            RungStatus.DIVERGED,
            Text(f"{num_findings} values differ", f"{num_findings} 个值不同"),
            findings=config_findings,
            tables=(_config_table(num_rows),),
        ),
        Rung.CURVES: RungResult(
            Rung.CURVES,
            RungStatus.DIVERGED,
            Text("actor/kl_loss leaves from step 10 on", "actor/kl_loss 从第 10 步起偏离"),
            findings=(_curve_finding(),),
            curves=tuple(_long_pair(metric, num_steps, generator) for metric in METRICS),
        ),
        Rung.ROLLOUT: RungResult(
            Rung.ROLLOUT, RungStatus.UNDECIDED, Text("no common prompt", "没有共同的提示词")
        ),
        Rung.ENVIRONMENT: RungResult(
            Rung.ENVIRONMENT, RungStatus.ALIGNED, Text("nothing known to matter", "没有重要差异")
        ),
    }
    return Report(
        reference=RunSummary("runs/gpu_grpo_qwen3_8b", "verl", "0.9.1", "cuda", 1, num_steps, 7),
        candidate=RunSummary(
            "runs/npu_grpo_qwen3_8b", "mindspeed_rl", "2.3.0", "npu", 1, num_steps, 5
        ),
        verdict=Verdict(
            status=VerdictStatus.DIVERGED,
            rung=Rung.CURVES,
            finding_id="curves.critic/score/mean.drift",
            sentence=Text(
                "The runs diverge: actor/kl_loss is about twice as large from step 10 on.",
                "两次运行有偏差：从第 10 步起 actor/kl_loss 约为参考的两倍。",
            ),
            cause=None,
            confidence=Confidence.NONE,
            next_step=Text(
                "Record the first step of both runs: `align capture -o RUN -- CMD`.",
                "记录两次运行的第一步：`align capture -o RUN -- CMD`。",
            ),
            not_recorded=(Rung.TOKENIZER, Rung.DATA, Rung.TOKENS, Rung.FORWARD),
        ),
        rungs=tuple(results.get(rung, _missing(rung)) for rung in RUNGS),
    )


def _missing(rung: Rung) -> RungResult:
    return RungResult(
        rung,
        RungStatus.MISSING,
        Text(f"nothing recorded for {rung.value}", f"没有 {rung.value} 的记录"),
        missing=(
            Missing(
                Text(f"{rung.value} capture", f"{rung.value} 采集"),
                "both",
                Text("`align capture -o RUN -- CMD`", "`align capture -o RUN -- CMD`"),
            ),
        ),
    )


def _environment_finding() -> Finding:
    return Finding(
        id="environment.vllm",
        rung=Rung.ENVIRONMENT,
        severity=Severity.INFO,
        title=Text("vllm 0.8.4 against 0.9.1", "vllm 0.8.4 对 0.9.1"),
        reference="0.8.4",
        candidate="0.9.1",
        evidence=(Evidence("gpu.log", Side.REFERENCE, 12, "vllm", "INFO vLLM version 0.8.4"),),
        why=Text("Kernels differ between versions.", "不同版本的算子不同。"),
        fix=Text("Use one version.", "使用同一版本。"),
        mechanism=Mechanism(Rung.ROLLOUT, Strength.NUMERIC, ("training/rollout_probs_diff*",)),
    )


def _config_finding() -> Finding:
    return Finding(
        id="config.model.rms_norm_eps",
        rung=Rung.CONFIG,
        severity=Severity.ERROR,
        title=Text("rms_norm_eps differs by ten", "rms_norm_eps 相差十倍"),
        reference=1e-6,
        candidate="1e-05",
        evidence=(
            Evidence(LONG_PATH, Side.REFERENCE, 1204, "model.rms_norm_eps", values=(1e-6,)),
            Evidence("default of MindSpeed-RL 2.3.0", Side.CANDIDATE, key="norm_epsilon"),
        ),
        why=Text("Every normalisation of every layer uses it.", "每一层的每个归一化都使用它。"),
        fix=Text("Set `--norm-epsilon 1e-6`.", "设置 `--norm-epsilon 1e-6`。"),
        mechanism=Mechanism(Rung.FORWARD, Strength.SEMANTIC),
    )


def _hostile_finding() -> Finding:
    return Finding(
        id=f"config.{HOSTILE}",
        rung=Rung.CONFIG,
        severity=Severity.WARNING,
        title=Text(HOSTILE, f"{HOSTILE} 中文"),
        reference=None,
        candidate=HOSTILE,
        evidence=(Evidence(HOSTILE, Side.BOTH, None, HOSTILE, HOSTILE, (None, True, math.nan)),),
        why=Text(HOSTILE, HOSTILE),
        fix=Text(HOSTILE, HOSTILE),
    )


def _curve_finding() -> Finding:
    return Finding(
        id="curves.critic/score/mean.drift",
        rung=Rung.CURVES,
        severity=Severity.WARNING,
        title=Text("critic/score/mean drifts from step 3", "critic/score/mean 从第 3 步起漂移"),
        reference=0.41,
        candidate=math.nan,
        evidence=(Evidence("npu.log", Side.CANDIDATE, 88, "critic/score/mean", "step:3 - … nan"),),
        why=Text("The reward is what is trained for.", "奖励是训练的目标。"),
        fix=Text("Find what comes before it.", "查找在它之前的原因。"),
        symptom=Symptom("critic/score/mean", Rung.REWARD, 3, 1, noise_sized=True),
    )


def _numbered_finding(i: int) -> Finding:
    severity = (Severity.ERROR, Severity.WARNING, Severity.INFO, Severity.INFO)[i % 4]
    key = f"actor_rollout_ref.actor.optim.some_setting_{i}"
    return Finding(
        id=f"config.{key}",
        rung=Rung.CONFIG,
        severity=severity,
        title=Text(f"{key} differs", f"{key} 不同"),
        reference=i * 1e-6,
        candidate=i * 2e-6,
        evidence=(
            Evidence("logs/gpu/train.log", Side.REFERENCE, 40 + i, key, f"'{key}': {i}e-6,"),
            Evidence(
                "configs/grpo_qwen3_8b.yaml", Side.CANDIDATE, 9 + i, key, f"{key}: {2 * i}e-6"
            ),
        ),
        why=Text("The optimizer takes other steps.", "优化器的步长不同。"),
        fix=Text(f"Set {key} to {i}e-6.", f"把 {key} 设为 {i}e-6。"),
        mechanism=Mechanism(Rung.OPTIMIZER, Strength.SEMANTIC),
    )


def _awkward_table() -> Table:
    return Table(
        id="config.values",
        title=Text("Effective values", "有效值"),
        columns=(
            Column("key", Text("Key", "键")),
            Column("reference", Text("Reference", "参考"), numeric=True),
            Column("candidate", Text("Candidate", "被测"), numeric=True),
        ),
        rows=(
            ("lr", 1e-6, "1e-06"),
            (HOSTILE, math.nan, -math.inf),
            (LONG_PATH, True, None),
            ("warmup", 10, 9),
            ("prompt", "", " x "),
        ),
    )


def _config_table(num_rows: int) -> Table:
    return Table(
        id="config.all",
        title=Text("All effective values", "全部有效值"),
        columns=(
            Column("key", Text("Key", "键")),
            Column("reference", Text("Reference", "参考"), numeric=True),
            Column("candidate", Text("Candidate", "被测"), numeric=True),
            Column("source", Text("Where from", "来源")),
        ),
        rows=tuple(
            (f"actor_rollout_ref.group_{i % 9}.leaf_{i}", i * 0.5, i * 0.5 + i % 7, f"run.log:{i}")
            for i in range(num_rows)
        ),
    )


def _short_pair() -> CurvePair:
    return CurvePair(
        metric="critic/score/mean",
        reference=Curve((1, 2, 3, 4, 5), (0.1, 0.2, 0.3, 0.4, 0.5), (0.1, 0.2, 0.3, 0.4, 0.5)),
        candidate=Curve(
            (1, 2, 3, 4, 5), (0.1, 0.2, math.nan, math.inf, 0.5), (0.1, 0.2, math.nan, 0.3, 0.5)
        ),
        window=1,
        note=Text("mean absolute error 4.1 %", "平均绝对误差 4.1 %"),
        finding_id="curves.critic/score/mean.drift",
    )


def _empty_pair() -> CurvePair:
    nothing = Curve((), (), ())
    return CurvePair(HOSTILE, nothing, nothing, 1, Text("no values", "没有数值"))


def _long_pair(metric: str, num_steps: int, generator: np.random.Generator) -> CurvePair:
    trend = 1 - np.exp(-np.arange(num_steps) / 150)
    scale = 200.0 if "length" in metric or "timing" in metric else 1.0
    reference = scale * (trend + generator.normal(0, 0.06, num_steps))
    candidate = scale * (0.9 * trend + generator.normal(0, 0.06, num_steps))
    if metric == "actor/grad_norm":
        reference, candidate = np.exp(reference), np.exp(candidate)
        candidate[num_steps // 2] *= 4000
        candidate[num_steps * 3 // 5 : num_steps * 3 // 5 + 12] = np.nan
    return CurvePair(
        metric=metric,
        reference=_curve(reference),
        candidate=_curve(candidate),
        window=15,
        note=Text(
            "Mean absolute error 4.6 % of the reference, interval 3.1 to 6.2 %: not failed.",
            "平均绝对误差为参考的 4.6 %，区间 3.1 至 6.2 %：未判为不合格。",
        ),
        finding_id="curves.critic/score/mean.drift" if metric == METRICS[0] else None,
    )


def _curve(values: np.ndarray, window: int = 15) -> Curve:
    padded = np.pad(values, (window - 1, 0), mode="edge")
    smoothed = np.lib.stride_tricks.sliding_window_view(padded, window).mean(axis=1)
    return Curve(tuple(range(1, len(values) + 1)), tuple(values.tolist()), tuple(smoothed.tolist()))
