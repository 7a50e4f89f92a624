"""What the recorder sees of FSDP2, and the private names that each of it needs.

A name that a torch does not have costs the signal that needs it, and no other; it is
said in the record, and by `fsdpdoctor env`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fsdpdoctor.recorder.fsdp2.signatures import Signatures
from fsdpdoctor.schema import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Something that is seen, and what is needed for it."""

    words: str
    hooks: tuple[str, ...] = ()  # that are put in place for it
    needs: tuple[str, ...] = ()  # beside those; "a|b": one of them
    evidence: tuple[Evidence, ...] = ()  # that a record lacks without it
    vital: bool = False  # without it nothing else of FSDP2 means anything


def _of(owner: str, names: str) -> tuple[str, ...]:
    return tuple(
        "|".join(f"{owner}.{one}" for one in name.split("|")) for name in names.split()
    )


_GROUP, _STATE, _PARAM = "FSDPParamGroup", "FSDPState", "FSDPParam"

SIGNALS: tuple[Signal, ...] = (
    Signal(
        words="units, their parameters and settings",
        needs=(
            *_of(_GROUP, "fsdp_params modules mesh_info post_forward_mesh_info"),
            *_of(_GROUP, "offload_policy unshard_async_op unshard_in_backward"),
            *_of(_GROUP, "_module_fqn"),
            f"{_GROUP}.mp_policy|{_PARAM}.mp_policy",
            *_of(_PARAM, "sharded_param _param_fqn _module_info _orig_size"),
            *_of(_PARAM, "fsdp_placement sharded_size padded_sharded_param_size"),
            *_of(_STATE, "_fsdp_param_group|_fsdp_param_groups _is_root _modules"),
            *_of(_STATE, "_states_to_forward_prefetch _states_to_backward_prefetch"),
            *_of("FSDPStateContext", "all_states"),
        ),
        vital=True,
    ),
    Signal(
        words="where a root's forward begins",
        hooks=_of(_STATE, "_root_pre_forward"),
        needs=(
            *_of("FSDPStateContext", "iter_forward_root"),
            f"{_STATE}._state_ctx",
            f"{_STATE}._root_pre_forward(self,module,args,kwargs)",
        ),
        vital=True,
    ),
    Signal(
        words="where a root's forward ends",
        hooks=_of(_STATE, "_register_pre_backward_hook"),
    ),
    Signal(
        words="where backward ends",
        hooks=(
            *_of(_STATE, "_register_root_post_backward_final_callback"),
            *_of(_STATE, "_root_post_backward_final_callback"),
        ),
        needs=_of("FSDPStateContext", "post_backward_final_callback_queued"),
    ),
    Signal(
        words="all-gathers",
        hooks=("foreach_all_gather", "foreach_all_gather_copy_out"),
        needs=(
            *_of("AllGatherResult", "all_gather_event all_gather_work"),
            f"{_GROUP}._training_state",
            "foreach_all_gather(fsdp_params,group,async_op)",
            "foreach_all_gather_copy_out(all_gather_result,fsdp_params,group)",
            "dist",
        ),
        evidence=(Evidence.COLLECTIVES, Evidence.STALLS, Evidence.ISSUE_TIMES),
    ),
    Signal(
        words="reduce-scatters and all-reduces of gradients",
        hooks=("foreach_reduce",),
        needs=(
            f"{_GROUP}.device_handle",
            "foreach_reduce(fsdp_params,unsharded_grads,reduce_scatter_group)",
            "dist",
        ),
        evidence=(Evidence.COLLECTIVES, Evidence.STALLS, Evidence.ISSUE_TIMES),
    ),
    Signal(
        words="how long units are unsharded",
        hooks=(
            *_of(_GROUP, "unshard wait_for_unshard"),
            f"{_GROUP}._to_sharded|{_GROUP}.reshard",
        ),
        needs=(
            *_of(_GROUP, "_all_gather_result _sharded_state"),
            f"{_PARAM}.all_gather_outputs",
        ),
        evidence=(Evidence.WINDOWS,),
    ),
    Signal(
        words="forward and backward of each unit",
        hooks=_of(_GROUP, "pre_forward post_forward pre_backward post_backward"),
        needs=_of(_GROUP, "_training_state _all_gather_result _sharded_state"),
        evidence=(Evidence.HOST,),
    ),
    Signal(
        words="waits for reductions, where backward ends",
        hooks=_of(_GROUP, "finalize_backward"),
        needs=(
            *_of(_GROUP, "comm_ctx reduce_grads _post_reduce_event"),
            *_of("FSDPCommContext", "reduce_scatter_state|reduce_scatter_states"),
        ),
        evidence=(Evidence.STALLS,),
    ),
    Signal(
        words="which all-gathers are prefetched",
        hooks=_of(_GROUP, "_prefetch_unshard"),
        evidence=(Evidence.PREFETCH,),
    ),
    Signal(
        words="unshards by hand",
        hooks=_of("FSDPModule", "unshard"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """A signal that a torch does not give, for want of these names."""

    signal: Signal
    names: tuple[str, ...]

    @property
    def words(self) -> str:
        missing = ", ".join(name.replace("|", " or ") for name in self.names)
        return f"not recorded: {self.signal.words}: this torch has no {missing}"


def lacking(there: Signatures, signals: Iterable[Signal] = SIGNALS) -> tuple[Lack, ...]:
    """The signals for which something is missing; none where nothing is known."""
    if not there:
        return ()
    found = []
    for signal in signals:
        needs = (*signal.hooks, *signal.needs)
        missing = tuple(need for need in needs if not _has(there, need))
        if missing:
            found.append(Lack(signal=signal, names=missing))
    return tuple(found)


def _has(there: Mapping[str, tuple[str, ...]], need: str) -> bool:
    for one in need.split("|"):
        name, _, parameters = one.rstrip(")").partition("(")
        expected = tuple(parameters.split(",")) if parameters else ()
        if name in there and there[name][: len(expected)] == expected:
            return True
    return False


def hooks_of(lacks: Iterable[Lack]) -> frozenset[str]:
    """What must not be wrapped, for it would not understand what it sees."""
    return frozenset(
        one for lack in lacks for hook in lack.signal.hooks for one in hook.split("|")
    )


def evidence_of(lacks: Iterable[Lack]) -> frozenset[Evidence]:
    """What a record does not show then."""
    return frozenset(kind for lack in lacks for kind in lack.signal.evidence)
