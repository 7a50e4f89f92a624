"""What helps where passes without gradients gather the same weights again (FD301)."""

from __future__ import annotations

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import NoGrad
from fsdpdoctor.changes.quoting import name_list
from fsdpdoctor.changes.unit_tree import first_path
from fsdpdoctor.detectors.judged_steps import all_units, unit_sums
from fsdpdoctor.detectors.remedies import has, model_comment, needs_torch
from fsdpdoctor.finding import Advice
from fsdpdoctor.schema import UNKNOWN

# Of the passes without gradients, those that gather a unit: in a loop that is gathered
# for once it is one of many, else nearly every one.
IN_VAIN = 0.5


def gathered_once(
    m: Measures, names: list[str], passes: list[NoGrad], trained: frozenset[int]
) -> tuple[Advice, ...]:
    """Around a loop; or for good, where the model never trains."""
    specs = all_units(m)
    freed = [fqn for fqn in names if specs[fqn].reshard_after_forward is True]
    if not freed or not has(m, "set_reshard_after_forward"):
        return ()
    sizes = [specs[fqn].unsharded_bytes for fqn in freed]
    never = specs[names[0]].model not in trained
    if not never and passes and not any(row.repeated for row in passes):
        return ()  # each pass is its step's only one: nothing is gathered in vain
    gathers = sum(unit_sums(m, "eval_all_gathers")[fqn] for fqn in freed)
    ran = sum(row.passes for row in passes)
    if not never and gathers < IN_VAIN * ran * len(freed):
        return ()  # a loop's first pass gathers for all of it already
    listed = name_list([first_path(fqn) for fqn in freed])
    whose = model_comment(m, names[0])
    newer = needs_torch(m, "set_reshard_after_forward")
    if never:
        text = (
            f"This model never trains: keep it gathered{newer}, and reshard() it where "
            "its weights are changed."
        )
        code = [whose, f"keep = {listed}", "for name in keep:", *_KEEP]
    else:
        text = f"Gather these units once, around the loop without gradients{newer}."
        code = [*_AROUND[:4], whose, f"names = {listed}", *_AROUND[4:]]
    return (
        Advice(
            text=text,
            code="\n".join(code),
            memory_cost_bytes=None if UNKNOWN in sizes else sum(sizes),
        ),
    )


_KEEP = (
    "    unit = model.get_submodule(name)",
    "    unit.set_reshard_after_forward(False, recurse=False)",
)
_AROUND = (
    "import contextlib",
    "",
    "# Then `with gathered(model):` around the loop.",
    "",
    "",
    "@contextlib.contextmanager",
    "def gathered(model, names=tuple(names)):",
    "    units = [model.get_submodule(name) for name in names]",
    "    for unit in units:",
    "        unit.set_reshard_after_forward(False, recurse=False)",
    "    try:",
    "        yield",
    "    finally:",
    "        for unit in units:",
    "            unit.set_reshard_after_forward(True, recurse=False)",
    "            unit.reshard()",
)
