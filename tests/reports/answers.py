"""What a right answer has, for each script of a public report's kind."""

from __future__ import annotations

from dataclasses import dataclass

DEATHS = ("FD406", "FD408")
QUIET_FAULTS = ("FD406", "FD408", "FD501", "FD504", "FD506", "FD507", "FD508", "FD505")
"""What must not be said of a healthy twin, at any severity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Of a script that does something wrong, or of its twin."""

    script: str
    way: str
    ranks: int = 2
    codes: tuple[str, ...] = ()  # any of them has to be there; none: a healthy twin
    says: tuple[str, ...] = ()  # patterns of its summary and evidence
    advises: str = ""  # a pattern of its advice
    not_advised: str = "$^"
    place: str | None = None  # a pattern: where
    never: tuple[str, ...] = ()  # codes that are wrong here
    fails: bool = False  # the script itself does

    def __str__(self) -> str:
        return f"{self.script}-{self.way}"


def twin(script: str, way: str, ranks: int = 2, never: tuple[str, ...] = ()) -> Answer:
    """A script with nothing wrong in it."""
    return Answer(script=script, way=way, ranks=ranks, never=(*QUIET_FAULTS, *never))


CLIPPING = [
    Answer(
        script="clipping",
        way="meshes-by-hand",
        codes=DEATHS,
        says=("mesh", "all 2 ranks raised the same"),
        advises="per mesh|each mesh|get_total_norm",
        place=r"clipping\.py:\d+ in by_hand",
        never=("FD406", "FD107"),
        fails=True,
    ),
    Answer(
        script="clipping",
        way="plain-at-once",
        codes=DEATHS,
        says=("plain", "clip"),
        advises="get_total_norm",
        not_advised="register_fsdp_forward_method",
        place=r"clipping\.py:\d+ in all_at_once",
        never=("FD406", "FD107"),
        fails=True,
    ),
    twin("clipping", "meshes-apart", never=("FD404:critical", "FD407:warning")),
    twin("clipping", "plain-apart", never=("FD404:critical", "FD407:warning")),
]

MESHES = [
    Answer(
        script="meshes",
        way="ulysses",
        ranks=4,
        codes=("FD501",),
        says=("replicat", "fsdp", "sp"),
        advises="[Ff]latten",
        never=("FD406", "FD107", "FD506"),
    ),
    *(
        twin("meshes", way, 4)
        for way in ("ulysses-flat", "hybrid-within-flat", "nodes")
    ),
    Answer(
        script="meshes",
        way="context-outside",
        ranks=4,
        codes=("FD501",),
        says=("never reduced", "dp_shard"),
        advises="_flatten",
        never=("FD406", "FD107"),
    ),
]

OPTIMIZERS = [
    *(
        Answer(
            script="optimizers",
            way=way,
            codes=("FD407",),
            says=("12 all-gathers a step", "optimizer"),
            advises="all.to.all|batch|shards",
            not_advised="fused=True",
            place=r"optimizers\.py:\d+",
            never=("FD406", "FD107", "FD504"),
        )
        for way in ("redistribute", "by-hand", "functional")
    ),
    Answer(
        script="optimizers",
        way="lamb",
        codes=("FD407",),
        says=("80 all-reduces a step", "optimizer"),
        advises="one tensor|once",
        not_advised="fused=True|all-to-all",
        place=r"optimizers\.py:\d+",
        never=("FD406", "FD107"),
    ),
    twin("optimizers", "lamb-at-once", never=("FD107", "FD407:warning")),
]

COMPILING = [
    *(
        Answer(
            script="compiling",
            way=way,
            codes=("FD505",),
            says=("recompil",),
            advises="dynamic|pad|bucket|recompile_limit|same length|tensor",
            not_advised="shard it after",
            never=("FD406", "FD107"),
        )
        for way in ("rows", "number")
    ),
    Answer(
        script="compiling",
        way="reads",
        codes=("FD505",),
        says=("graph break",),
        advises=r"item|break",
        not_advised="shard it after",
        never=("FD406", "FD107"),
    ),
    Answer(
        script="compiling", way="two-lengths", never=("FD505:warning", "FD406", "FD107")
    ),
]

RANK_GUARDS = [
    *(
        Answer(
            script="rank_guards",
            way=way,
            codes=DEATHS,
            says=(said, "step (4|5)"),
            advises="every rank|all ranks|each rank",
            place=r"rank_guards\.py:\d+",
            never=("FD504", "FD506"),
            fails=True,
        )
        for way, said in (
            ("evaluate", "evaluate|all.gather of <root>"),
            ("state-dict", "save|get_model_state_dict"),
            ("metric", "note|all_?-?reduce"),
        )
    ),
    *(
        twin("rank_guards", way, never=("FD107:warning",))
        for way in ("evaluate-all", "state-dict-all", "metric-all")
    ),
]

UNEVEN = [
    Answer(
        script="uneven",
        way="short-data",
        codes=("FD406",),
        says=("rank 1 ended well after 6 steps",),
        advises="every rank|all ranks|each rank|together",
        never=("FD504", "FD506"),
        fails=True,
    ),
    Answer(
        script="uneven",
        way="packing",
        codes=("FD406",),
        says=("step 4", "micro.?batch"),
        advises="every rank|all ranks|each rank|together",
        never=("FD504", "FD506"),
        fails=True,
    ),
    Answer(
        script="uneven",
        way="bad-loss",
        codes=("FD406",),
        says=("step 5", "micro.?batch"),
        advises="every rank|all ranks|each rank|together",
        never=("FD504", "FD506"),
        fails=True,
    ),
    twin("uneven", "lengths", never=("FD107",)),
    twin("uneven", "bad-loss-agreed", never=("FD107:warning", "FD407:warning")),
]

OUTSIDE = [
    *(
        Answer(
            script="outside",
            way=way,
            codes=("FD508",),
            says=("outside every unit", "reduc", name),
            advises="all.?reduce|fully_shard|[Ss]hard|[Aa]verage",
            never=("FD107", "FD503:100.0 %"),
        )
        for way, name in (
            ("only-blocks", "wte.weight"),
            ("prompt", "prompt"),
            ("injected", "blocks.0.out.down.weight"),
        )
    ),
    twin("outside", "injected-first", never=("FD503:100.0 %",)),
    twin("outside", "prompt-averaged", never=("FD503:100.0 %", "FD407:warning")),
]

LEAVING = [
    *(
        Answer(
            script="leaving",
            way=way,
            codes=("FD407",),
            says=("40 all-gathers a step",),
            advises="unshard|unit",
            place=r"leaving\.py:\d+",
            never=("FD406", "FD504"),
        )
        for way in ("state-dict", "replicate", "average")
    ),
    Answer(
        script="leaving",
        way="norms",
        codes=("FD407",),
        says=("40 all-reduces a step",),
        advises="one tensor|once",
        place=r"leaving\.py:\d+",
        never=("FD406", "FD504"),
    ),
    Answer(
        script="leaving",
        way="seldom",
        codes=("FD407",),
        says=("40 all-gathers of .* each in 1 of \\d+ judged steps",),
        advises="less often",
        place=r"leaving\.py:\d+",
        never=("FD406", "FD504"),
    ),
    twin("leaving", "average-of-shards", never=("FD407", "FD303", "FD107")),
]

UNSHARDED = [
    Answer(
        script="unsharded",
        way="apart",
        codes=("FD506",),
        says=("ranks train apart", r"differs since step \d"),
        advises="[Ss]hard",
        never=("FD406", "FD408", "FD507", "FD508"),
    ),
    *(
        Answer(
            script="unsharded",
            way=way,
            never=("FD506:warning", "FD406", "FD408", "FD507", "FD508"),
        )
        for way in ("each", "at-once", "local-steps")
    ),
]

ANSWERS = [
    *(*CLIPPING, *MESHES, *OPTIMIZERS, *COMPILING),
    *(*RANK_GUARDS, *UNEVEN, *OUTSIDE, *LEAVING, *UNSHARDED),
]
