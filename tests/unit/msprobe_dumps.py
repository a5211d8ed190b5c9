"""Dumps in msprobe's format, of small PyTorch modules, made without msprobe.

Written from the format's description: keys, places and file names; statistics in float32.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Edit = Callable[["Block"], None]


class Norm(nn.Module):
    """RMS norm with an epsilon of its own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, size))
        self.epsilon = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * (x.pow(2).mean(-1, keepdim=True) + self.epsilon).rsqrt()


class Attention(nn.Module):
    """One head of attention over tokens."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(size, size), nn.Linear(size, size)
        self.v_proj, self.o_proj = nn.Linear(size, size), nn.Linear(size, size)
        self.scale = size**-0.5

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q_proj(x) @ self.k_proj(x).transpose(-1, -2) * self.scale
        return self.o_proj(scores.softmax(-1) @ self.v_proj(x))


class Layer(nn.Module):
    """Attention over normed tokens, beside a residual."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(size), Attention(size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.self_attn(self.input_layernorm(x))


class Block(nn.Module):
    """Embedding, two attention layers and a head."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(32, size)
        self.layers = nn.ModuleList([Layer(size), Layer(size)])
        self.lm_head = nn.Linear(size, 32, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)

    def layer(self, index: int) -> Layer:
        """Return one of the layers."""
        found = self.layers[index]
        assert isinstance(found, Layer)
        return found


def unchanged(model: Block) -> None:
    """Leave a model as it is."""


def dump_model(
    folder: Path,
    edit: Edit = unchanged,
    *,
    task: str = "tensor",
    digest: bool = False,
    prefix: str = "model.",
    process: str = "rank0",
    seed: int = 3,
    layout: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Path:
    """Run one forward and backward of an edited model, and dump every module's tensors.

    Args:
        layout: of activations of three axes.
    """
    torch.manual_seed(11)
    model = Block()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    edit(model)
    ids = torch.randint(0, 32, (2, 8), generator=torch.Generator().manual_seed(seed))
    dump = _Dump(folder / "step0" / process, task, digest, layout)
    for name, module in model.named_modules():
        if name and not isinstance(module, nn.ModuleList):
            module.register_forward_hook(_hook(dump, f"{prefix}{name}", module))
    loss = model(ids).logsumexp(-1).square().mean()
    loss.backward()
    dump.write()
    return folder


def _hook(dump: _Dump, name: str, module: nn.Module) -> Callable[..., None]:
    kind = type(module).__name__

    def hook(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        own = dict(module.named_parameters(recurse=False))
        sections = {"input_args": list(args), "input_kwargs": {}, "output": [output]}
        dump.add(f"Module.{name}.{kind}.forward.0", {**sections, "parameters": own})
        output.register_hook(
            lambda g: dump.add(f"Module.{name}.{kind}.backward.0", {"input": [g], "output": []})
        )

    return hook


class _Dump:
    def __init__(
        self, folder: Path, task: str, digest: bool, layout: Callable[[Tensor], Tensor]
    ) -> None:
        self.folder, self.task, self.digest, self.layout = folder, task, digest, layout
        self.data: dict[str, Any] = {}

    def add(self, key: str, sections: Mapping[str, Any]) -> None:
        names = {"input_args": "input"}
        self.data[key] = {
            section: self._leaves(f"{key}.{names.get(section, section)}", value)
            for section, value in sections.items()
        }

    def _leaves(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._leaves(f"{name}.{i}", item) for i, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: self._leaves(f"{name}.{key}", item) for key, item in value.items()}
        return self._leaf(name, value.detach())

    def _leaf(self, name: str, tensor: Tensor) -> dict[str, Any]:
        tensor = (self.layout(tensor) if tensor.ndim == 3 else tensor).contiguous()
        is_float = tensor.is_floating_point()
        found = {
            "type": "torch.Tensor",
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            "Max": tensor.max().item(),
            "Min": tensor.min().item(),
            "Mean": tensor.mean().item() if is_float else None,
            "Norm": tensor.norm().item() if is_float else None,
            "requires_grad": False,
        }
        if self.digest:
            raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
            found["md5"] = f"{zlib.crc32(raw):08x}"
        if self.task == "tensor":
            found["data_name"] = f"{name}.pt"
            place = self.folder / "dump_tensor_data"
            place.mkdir(parents=True, exist_ok=True)
            torch.save(tensor, place / f"{name}.pt")
        return found

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        head = {"task": self.task, "level": "L0", "framework": "pytorch", "dump_data_dir": "/x"}
        document = {**head, "data": self.data}
        (self.folder / "dump.json").write_text(json.dumps(document, indent=1))
        parents = {key: _parent(key, self.data) for key in self.data}
        (self.folder / "construct.json").write_text(json.dumps(parents))


def _parent(key: str, data: Mapping[str, Any]) -> str | None:
    direction = key.rsplit(".", 2)[1]
    path = key.removeprefix("Module.").rsplit(".", 3)[0]
    inside = [
        other
        for other in data
        if other.rsplit(".", 2)[1] == direction
        and path.startswith(other.removeprefix("Module.").rsplit(".", 3)[0] + ".")
    ]
    return max(inside, key=len, default=None)
