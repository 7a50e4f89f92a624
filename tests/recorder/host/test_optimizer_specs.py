"""Which optimizer has replaced another, and which is another model's."""

from __future__ import annotations

import torch
from torch import nn

from fsdpdoctor.recorder.host.optimizer_specs import OptimizersSeen


def owners(*modules: nn.Module) -> dict[int, object]:
    """As they are: each parameter's module."""
    return {id(param): module for module in modules for param in module.parameters()}


def classes(seen: OptimizersSeen) -> list[str]:
    """What those are that have not been replaced."""
    return [spec.optimizer_class for spec in seen.specs()]


def test_one_that_takes_another_s_parameters_replaces_it() -> None:
    """Those of one module, and no others."""
    seen, net, head = OptimizersSeen(), nn.Linear(2, 2), nn.Linear(2, 1)
    first = torch.optim.SGD(net.parameters(), lr=0.1)
    other = torch.optim.Adagrad(head.parameters(), lr=0.1)
    second = torch.optim.AdamW(net.parameters(), lr=0.1)
    for optimizer in (first, other, second):
        assert not seen.knows(optimizer)
        seen.add(optimizer, owners(net, head))

    assert classes(seen) == ["Adagrad", "AdamW"]
    assert seen.count == 3
    assert list(seen.alive()) == [first, other, second]
    assert seen.knows(first)


def test_a_parameter_that_got_a_gone_one_s_id_is_another() -> None:
    """A model was let go of, and the next has parameters where it had its own."""
    seen, net, later = OptimizersSeen(), nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen.add(optimizer, owners(net))
    same_ids: dict[int, object] = dict.fromkeys(owners(net), later)
    seen.add(torch.optim.AdamW(net.parameters(), lr=0.1), same_ids)

    assert classes(seen) == ["SGD", "AdamW"]


def test_one_of_parameters_that_no_module_holds_replaces_none() -> None:
    """Nothing tells whether they are the same ones as before."""
    seen, net, own = OptimizersSeen(), nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        seen.add(kind([own], lr=0.1), owners(net))

    assert classes(seen) == ["SGD", "AdamW"]
    assert [spec.stale for spec in seen.specs()] == [1, 1]


def test_what_units_had_gathered_is_no_parameter_of_the_model() -> None:
    """Of the gathered ones only those that are to be trained, and had no gradient."""
    seen, net = OptimizersSeen(), nn.Linear(2, 2)
    gathered = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    gathered[1].requires_grad_(False)
    gathered[2].grad = torch.ones(2)
    optimizer = torch.optim.SGD([*net.parameters(), *gathered], lr=0.1)
    ids = {id(param) for param in gathered}
    seen.add(optimizer, owners(net) | dict.fromkeys(ids, net), ids)

    (spec,) = seen.specs()
    assert (spec.params, spec.gathered, spec.stale) == (5, 1, 0)
    assert spec.without_grad == 4
