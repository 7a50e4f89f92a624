"""Units by name: their order, their trees, and which parameters are tables."""

from __future__ import annotations

import pytest

from fsdpdoctor.changes.unit_tree import (
    TreeUnit,
    UnitTree,
    backward_order,
    first_path,
    inside,
    is_embedding,
    is_head,
)


def tree(*units: tuple[str, int, bool]) -> UnitTree:
    """Units by name, number of their tree, and whether they are its root."""
    return UnitTree(
        units=tuple(TreeUnit(fqn=f, tree=t, is_root=root) for f, t, root in units)
    )


@pytest.mark.parametrize(
    ("name", "embedding", "head"),
    [
        ("embed.weight", True, False),
        ("model.embed_tokens.weight", True, False),
        ("tok_embeddings.weight", True, False),
        ("transformer.wte.weight", True, False),
        ("gpt_neox.embed_in.weight", True, False),
        ("posemb.weight", True, False),
        ("Embedding.weight", True, False),
        ("lm_head.weight", False, True),
        ("embed_out.weight", False, True),
        ("head.embed_out.weight", False, True),
        ("unembed.weight", False, True),
        ("output.weight", False, True),
        ("ensemble.0.weight", False, False),
        ("layers.0.member.weight", False, False),
        ("norm.weight", False, False),
    ],
)
def test_tables_by_name(name: str, embedding: bool, head: bool) -> None:
    """A name is a first table, a last one or neither, never both."""
    assert (is_embedding(name), is_head(name)) == (embedding, head)


@pytest.mark.parametrize(
    ("fqn", "path"),
    [
        ("<root>", ""),
        ("<root> [tree=1]", ""),
        ("<root> [pg=2]", ""),
        ("layers.0 [pg=4] #2", "layers.0"),
        ("layers.0 [tree=1] #2", "layers.0"),
        ("norm, output", "norm"),
    ],
)
def test_what_tells_units_apart_is_no_path(fqn: str, path: str) -> None:
    """`get_submodule` knows no suffix, and the root by the empty path."""
    assert first_path(fqn) == path


def test_inside() -> None:
    """By whole names; everything is inside the root."""
    assert inside("a.b", "a")
    assert not inside("ab", "a")
    assert inside("a", "<root>")
    assert not inside("a", "a")


def test_backward_begins_with_parents() -> None:
    """The reverse of forward, but a parent before its own children."""
    names = ("<root>", "a", "a.x", "a.y", "b")

    assert backward_order(names) == (0, 4, 1, 3, 2)


def test_units_of_one_module_begin_together() -> None:
    """What tells them apart is no path, and `ab` is no part of `a`."""
    names = ("a", "a [pg=2]", "ab", "a.x, a.y", "<root>")

    assert backward_order(names) == (4, 0, 1, 3, 2)


def test_several_roots_of_one_model() -> None:
    """They are called on one by one, and chained apart."""
    towers = tree(
        ("left", 0, True),
        ("left.0", 0, False),
        ("right", 1, True),
        ("right.0", 1, False),
    )

    assert len(towers.models) == 1
    assert towers.root_paths == ("left", "right")
    assert [[u.fqn for u in one.units] for one in towers.trees] == [
        ["left", "left.0"],
        ["right", "right.0"],
    ]


def test_several_models_have_names_of_their_own() -> None:
    """A teacher's units are not found in the student."""
    two = tree(
        ("<root>", 0, True),
        ("layers.0", 0, False),
        ("<root> [tree=1]", 1, True),
        ("layers.0 [tree=1]", 1, False),
    )

    assert [len(model.units) for model in two.models] == [2, 2]
    assert len(tree(("<root>", 0, True), ("a", 0, False)).models) == 1
