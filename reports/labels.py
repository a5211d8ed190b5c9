"""The report's own words, in both languages."""

from __future__ import annotations

from align.core.finding import Severity, Strength
from align.core.rung import Rung, RungStatus
from align.core.text import Text
from align.core.verdict import Confidence, VerdictStatus

RUNGS = {
    Rung.ENVIRONMENT: Text("Environment", "环境"),
    Rung.CONFIG: Text("Configuration", "配置"),
    Rung.TOKENIZER: Text("Tokenizer", "分词器"),
    Rung.DATA: Text("Data", "数据"),
    Rung.ROLLOUT: Text("Rollout", "Rollout 生成"),
    Rung.TOKENS: Text("Trainer input tokens", "训练输入 token"),
    Rung.FORWARD: Text("Forward pass", "前向计算"),
    Rung.REWARD: Text("Reward", "奖励"),
    Rung.ADVANTAGE: Text("Advantage", "优势"),
    Rung.LOSS: Text("Loss", "损失"),
    Rung.BACKWARD: Text("Backward pass", "反向计算"),
    Rung.OPTIMIZER: Text("Optimizer", "优化器"),
    Rung.WEIGHT_SYNC: Text("Weight sync", "权重同步"),
    Rung.CURVES: Text("Curves", "训练曲线"),
    Rung.EVALS: Text("Evaluations", "评测"),
}
RUNG_STATUS = {
    RungStatus.ALIGNED: Text("aligned", "一致"),
    RungStatus.DIVERGED: Text("diverged", "偏离"),
    RungStatus.UNDECIDED: Text("undecided", "无法判定"),
    RungStatus.MISSING: Text("not compared", "未比较"),
}
VERDICT_STATUS = {
    VerdictStatus.ALIGNED: Text("Aligned", "一致"),
    VerdictStatus.DIVERGED: Text("Diverged", "偏离"),
    VerdictStatus.UNDECIDED: Text("Undecided", "无法判定"),
    VerdictStatus.NOT_COMPARABLE: Text("Not comparable", "不可比较"),
}
SEVERITY = {
    Severity.ERROR: Text("error", "错误"),
    Severity.WARNING: Text("warning", "警告"),
    Severity.INFO: Text("info", "提示"),
}
CONFIDENCE = {
    Confidence.HIGH: Text(
        "high, its mechanism explains the earliest recorded symptom",
        "高，其作用机理能解释最早记录到的现象",
    ),
    Confidence.MEDIUM: Text(
        "medium, it is known to change results, but no later symptom was recorded",
        "中，已知会改变结果，但没有记录到后续现象",
    ),
    Confidence.NONE: Text(
        "none, no recorded difference explains what is seen",
        "无，没有任何已记录的差异能解释所见现象",
    ),
}
STRENGTH = {
    Strength.SEMANTIC: Text("changes what is computed", "改变了所计算的量"),
    Strength.NUMERIC: Text("changes rounding or sampling only", "只改变舍入或采样"),
    Strength.NONE: Text("no effect on numbers is known", "未知有数值影响"),
}
SIDES = {
    "reference": Text("reference", "参考"),
    "candidate": Text("candidate", "被测"),
    "both": Text("both", "双方"),
}
WORDS = {
    "title": Text("Alignment report", "对齐报告"),
    "colon": Text(": ", "："),
    "comma": Text(", ", "、"),
    "then": Text(", ", "，"),
    "stop": Text(".", "。"),
    "skip": Text("Skip to the findings", "跳到问题列表"),
    "verdict": Text("Verdict", "结论"),
    "confidence": Text("Confidence in the cause", "对原因的把握"),
    "first_cause": Text("First cause", "首要原因"),
    "cause_unknown": Text(
        "Unknown: no recorded difference explains what is seen.",
        "未知：没有任何已记录的差异能解释所见现象。",
    ),
    "no_cause_needed": Text("None: nothing diverged.", "无：没有发现偏离。"),
    "fix": Text("Fix", "修复方法"),
    "no_fix": Text("None can be named without a cause.", "原因未明，无法给出。"),
    "no_fix_needed": Text("Nothing to change.", "无需修改。"),
    "next_step": Text("Next step", "下一步"),
    "next_run": Text("What to run next", "接下来运行什么"),
    "no_next_step": Text("None.", "无。"),
    "mark_cause": Text("first cause", "首要原因"),
    "mark_symptom": Text("earliest symptom", "最早的现象"),
    "mark_open": Text("undecided here", "在此待定"),
    "not_recorded": Text("Not compared", "未比较的环节"),
    "runs": Text("The two runs", "两次运行"),
    "framework": Text("Framework", "框架"),
    "device": Text("Device", "设备"),
    "steps": Text("Steps", "步数"),
    "files": Text("Files", "文件"),
    "not_stated": Text("not stated", "未说明"),
    "left_out": Text("Left out of the comparison", "未参与对比的文件"),
    "left_out_count": Text("{count} left out", "{count} 项未参与"),
    "unreadable": Text("cannot be read", "无法读取"),
    "unknown": Text("no reader knows it", "无法识别"),
    "ladder": Text("The ladder", "逐级对比"),
    "ladder_note": Text(
        "Links of the training chain in causal order; the first that breaks is where to look.",
        "按因果顺序排列的训练链路；最先偏离的一环就是应当排查之处。",
    ),
    "findings": Text("All findings", "全部问题"),
    "no_findings": Text("No findings.", "没有发现问题。"),
    "status": Text("Status", "状态"),
    "summary": Text("Summary", "概要"),
    "metric": Text("Metric", "指标"),
    "note": Text("Note", "说明"),
    "severity": Text("Severity", "级别"),
    "rung": Text("Rung", "环节"),
    "finding": Text("Finding", "问题"),
    "reference": Text("Reference", "参考"),
    "candidate": Text("Candidate", "被测"),
    "difference": Text("Candidate − reference, smoothed", "被测 − 参考（平滑后）"),
    "evidence": Text("Evidence", "证据"),
    "listed_values": Text("values", "取值"),
    "why": Text("Why it matters", "为什么重要"),
    "acts_on": Text("Acts on", "作用于"),
    "explains": Text("explains", "可解释"),
    "symptom": Text("Symptom", "现象"),
    "from_step": Text("diverges from step {step} on", "从第 {step} 步起偏离"),
    "first_recorded": Text("first recorded step {step}", "最早记录为第 {step} 步"),
    "noise_sized": Text("within the size of noise", "幅度在噪声范围内"),
    "rungs": Text("Rung by rung", "各环节详情"),
    "curves": Text("Curves", "曲线"),
    "curves_note": Text(
        "Thin: as recorded. Thick: smoothed. Grey band: as far as equal runs differ. "
        "Dashed upright: where they part. Crosses at the foot: NaN or infinite. Across: step.",
        "细线：原始记录。粗线：平滑后。灰色带：相同运行之间的差异范围。竖直虚线：分开之处。"
        "底部叉号：NaN 或无穷大。横轴：步数。",
    ),
    "relative_error": Text("relative error", "相对误差"),
    "explained": Text("explained by rounding, noise or inputs", "舍入、噪声或输入误差可解释的范围"),
    "first_divergence": Text("first divergence", "最早偏离处"),
    "none_departs": Text("none departs", "没有偏离"),
    "depth_note": Text(
        "Across: order of computation, layers shaded in turn. Up: logarithmic; at the foot 0, "
        "at the top infinite.",
        "横轴：计算次序，各层交替着色。纵轴：对数；最下方为 0，最上方为无穷大。",
    ),
    "neighbourhood": Text("Around the first divergence", "最早偏离处的上下游"),
    "before": Text("computed before", "之前的计算"),
    "after": Text("computed after", "之后的计算"),
    "error": Text("error", "误差"),
    "heat": Text(
        "Error over what is explained, by layer (across) and module",
        "误差与可解释范围之比：按层（横）与模块（纵）",
    ),
    "grid_note": Text(
        "Down: {down}. Across: {across}. Colour: error over what is explained.",
        "纵向：{down}。横向：{across}。颜色：误差与可解释范围之比。",
    ),
    "cells_beyond": Text(
        "{count} of {total} cells are beyond it.", "{count} 格超出（共 {total} 格）。"
    ),
    "tasks": Text("Each task", "各任务"),
    "at_step": Text("at step {step}", "第 {step} 步"),
    "window": Text("smoothed over {count} steps", "平滑窗口 {count} 步"),
    "log_scale": Text("logarithmic axis", "对数坐标"),
    "gaps": Text("{count} values NaN or infinite", "{count} 个值为 NaN 或无穷大"),
    "no_common_steps": Text("no step in common", "没有共同的步"),
    "more_curves": Text("More curves, in report.json alone:", "其余曲线只在 report.json 中："),
    "filter": Text("Filter rows", "筛选行"),
    "more_rows": Text(
        "{count} more rows, in report.json alone", "另有 {count} 行未显示，见 report.json"
    ),
    "sort_help": Text(
        "Headings sort the table: Enter sorts, the arrow keys move between them.",
        "表头可排序：按 Enter 排序，用方向键在表头间移动。",
    ),
    "missing": Text("What is missing", "缺失的内容"),
    "missing_note": Text(
        "Each of these would make the comparison reach further.", "补充下列内容可使对比更深入。"
    ),
    "nothing_missing": Text("Nothing is missing.", "没有缺失。"),
    "artifact": Text("Artifact", "内容"),
    "side": Text("Run", "运行"),
    "how_to_record": Text("How to record it", "如何记录"),
    "also_missing": Text("Some of this rung was not recorded", "该环节有部分内容未记录"),
    "footer": Text(
        "Drawn by npu-align from report.json; schema version",
        "由 npu-align 根据 report.json 绘制；格式版本",
    ),
}
