"""Texts that different tokenizers are known to cut differently, each with its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from align.core.text import Text
from dumps.store.run_data import RunData

MAX_PROMPTS = 64  # of the run's own
MAX_CHARACTERS = 20_000  # of one of them


@dataclass(frozen=True, slots=True)
class Sample:
    """One text to encode; ``num_replaced`` halves of characters in it were replaced by U+FFFD."""

    name: Text
    text: str
    num_replaced: int = 0


def sample(name: Text, text: str) -> Sample:
    """Make a sample of any string: half a character has no UTF-8, so no tokenizer takes it."""
    num_halves = sum("\ud800" <= character <= "\udfff" for character in text)
    if not num_halves:
        return Sample(name, text)
    whole = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    return Sample(name, whole, num_halves)


FIXED: tuple[Sample, ...] = tuple(
    sample(name, text)
    for name, text in (
        (
            Text("English", "英文"),
            "The larger train left at 9:45, and I'll say it isn't the last one we've missed.",
        ),
        (
            Text("Chinese", "中文"),
            "小明有十二个苹果，又买了3.5千克梨。请问他一共花了多少钱？答案写在最后一行。",
        ),
        (
            Text("traditional Chinese and Japanese", "繁体中文与日文"),
            "臺灣的電腦與軟體；東京でラーメンを食べました。",
        ),
        (
            Text("mixed scripts", "混合文字"),
            "Цена 120 ₽, ποσό 7 €, السعر ١٢, 가격 3원, giá 5₫",
        ),
        (
            Text("digits", "数字"),
            "1234567890 3.14159 1,000,000 2024-12-31 0x1F 10^-6 ½ ²",
        ),
        (
            Text("Python code", "Python 代码"),
            "def f(x, *, n=0):\n    # return x\n\tif x != n:\n        return [i**2]\n\n\n",
        ),
        (
            Text("C and JSON", "C 与 JSON"),
            'for(int i=0;i<n;++i){a[i]+=b->c;}\n{"k":[1,null,true],"s":"\\u4f60"}',
        ),
        (
            Text("LaTeX", "LaTeX"),
            "Put it in \\boxed{\\frac{a^{2}+b_{1}}{\\sqrt{2\\pi}}} if $x\\le y$, \\[\\sum_i i\\].",
        ),
        (
            Text("emoji", "表情符号"),
            "ok 👍🏽 family 👨‍👩‍👧 flag 🇨🇳 heart ❤️ end",
        ),
        (
            Text("runs of white space", "连续空白"),
            "a  b   c\t\td \u00a0e\u3000f\r\ng\n\n\n\nh \n i   ",
        ),
        (Text("leading space", "开头空格"), "  indented"),
        (
            Text("composed and decomposed letters", "组合与分解字符"),
            "caf\u00e9 cafe\u0301 \uff21\uff22\uff23\uff11\uff12 \ufb01n \u2460 \u212b",
        ),
        (
            Text("contractions in capitals", "大写缩写"),
            "I'M SURE IT'S WHAT THEY'LL DO. l’été, don’t",
        ),
        (
            Text("text of special tokens", "特殊 token 的文本"),
            "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><s></s><think>\n</think><|eot_id|> <pad>",
        ),
        (
            Text("reasoning and tools", "推理与工具"),
            "<think> reasoning </think><answer> 42 </answer><tool_call>{}</tool_call>",
        ),
        (
            Text("rare and unassigned characters", "生僻与未分配字符"),
            "\U00020000\U0002a6d6 \u0378 \ue000 \u200b\u200d\ufeff \x07 end",
        ),
        (Text("half of a character", "半个字符"), "a\ud800b\udc00"),
        (
            Text("one long word", "超长单词"),
            "pneumonoultramicroscopicsilicovolcanoconiosis" * 3 + "=" * 40,
        ),
    )
)


def own_prompts(data: RunData) -> Iterator[str]:
    """Yield the first different prompts that a run recorded or trains on."""
    yield from _first(_recorded(data))


def _recorded(data: RunData) -> Iterator[str]:
    for batch in data.rollout_batches():
        yield from batch.prompts or ()
    for data_set in data.data_sets:
        yield from data_set.prompts or ()


def _first(prompts: Iterator[str]) -> Iterator[str]:
    seen: dict[str, None] = {}
    for prompt in prompts:
        text = prompt[:MAX_CHARACTERS]
        if text and text not in seen:
            seen[text] = None
            yield text
            if len(seen) == MAX_PROMPTS:
                return


def samples(reference: RunData, candidate: RunData) -> Sequence[Sample]:
    """Return the fixed texts, then the prompts of both runs, each once."""
    prompts: Mapping[str, None] = dict.fromkeys(
        text for data in (reference, candidate) for text in own_prompts(data)
    )
    named = (
        sample(Text(f"prompt {n} of the runs", f"运行的第 {n} 条 prompt"), text)
        for n, text in enumerate(prompts, 1)
    )
    return (*FIXED, *named)
