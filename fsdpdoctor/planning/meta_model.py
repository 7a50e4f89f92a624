"""A model's parameters without its memory: its factory runs on the meta device."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from fsdpdoctor.errors import UsageError


class MetaParam(NamedTuple):
    """One parameter, as the factory made it."""

    fqn: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    projects_back: bool = False  # an embedding's, and another module's: tied


class MetaModel(NamedTuple):
    """The parameters of a model, and which of its modules repeat."""

    params: tuple[MetaParam, ...]
    blocks: tuple[str, ...]  # FQNs, in the order of the model


def meta_model(text: str) -> MetaModel:
    """Make `module:factory` on the meta device. Raises UsageError."""
    module_name, _, factory_name = text.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"cannot import {module_name} for {text}: {error}") from None
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise UsageError(f"{module_name} has no function {factory_name}")
    try:
        with torch.device("meta"):
            model = factory()
    except Exception as error:
        raise UsageError(
            f"{text}() failed on the meta device: {type(error).__name__}: {error}"
        ) from None
    if not isinstance(model, nn.Module):
        raise UsageError(f"{text}() returned a {type(model).__name__}, not a module")
    tied = _tied(model)
    params = tuple(
        MetaParam(
            fqn=fqn,
            shape=tuple(param.shape),
            dtype=str(param.dtype).removeprefix("torch."),
            trainable=param.requires_grad,
            projects_back=id(param) in tied,
        )
        for fqn, param in model.named_parameters()
    )
    return MetaModel(params=params, blocks=tuple(_blocks(model, "")))


def _tied(model: nn.Module) -> set[int]:
    """Ids of tables of embeddings that a module of another kind has, too."""
    tables: set[int] = set()
    others: set[int] = set()
    for module in model.modules():
        held = tables if isinstance(module, nn.Embedding) else others
        held.update(id(p) for p in module.parameters(recurse=False))
    return tables & others


def _blocks(module: nn.Module, prefix: str) -> Iterator[str]:
    """The outermost siblings of one class that hold parameters, two or more."""
    for name, child in module.named_children():
        fqn = f"{prefix}{name}"
        if isinstance(child, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
            inside = [(n, m) for n, m in child.named_children() if [*m.parameters()]]
            if len(inside) > 1 and len({type(m) for _, m in inside}) == 1:
                yield from (f"{fqn}.{n}" for n, _ in inside)
                continue
        yield from _blocks(child, f"{fqn}.")
