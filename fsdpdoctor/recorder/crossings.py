"""Every place where code of somebody else comes to call ours, and what it calls.

[Note: Crossings] What is not listed here may not be done: a test compares the list with
the code, and makes each of `CALLBACKS` fail in the middle of a training, one at a time.
None may change a bit of it. See [Note: Nothing of ours] in `border`.
"""

from __future__ import annotations

SITES: dict[str, frozenset[str]] = {
    "fsdpdoctor.recorder.patching": frozenset({"setattr", "delattr", "cell_contents"}),
    "fsdpdoctor.recorder.fsdp2.installed_hooks": frozenset({"HookSet.add"}),
    "fsdpdoctor.recorder.own_threads": frozenset(
        {"start_new_thread", "atexit.register"}
    ),
    "fsdpdoctor.recorder.forks": frozenset({"register_at_fork"}),
    "fsdpdoctor.recorder.fsdp2.all_gather_hooks": frozenset({"add_done_callback"}),
    # Until the first step has ended.
    "fsdpdoctor.recorder.host.start_watch": frozenset(
        {"Patches.put_inside", "Patches.wrap"}
    ),
    # On parameter groups and on what `torch.distributed` is for FSDP2.
    "fsdpdoctor.recorder.fsdp2.unit_registry": frozenset({"setattr"}),
    "fsdpdoctor.recorder.fsdp2.internals": frozenset({"setattr", "delattr"}),
    # What FSDPModule's own methods set, where autotuning was asked for.
    "fsdpdoctor.recorder.fsdp2.running_settings": frozenset({"setattr"}),
    "fsdpdoctor.recorder.autotune.passes": frozenset(
        {"Patches.put", "register_optimizer_step_pre_hook"}
    ),
    "fsdpdoctor.recorder.host.host_hooks": frozenset(
        {
            "Patches.put",
            "Patches.wrap",
            "Patches.put_inside",
        }
    ),
    "fsdpdoctor.recorder.host.collection_watch": frozenset(
        {"gc.callbacks", "setattr"}  # the attribute is of our own class
    ),
    "fsdpdoctor.recorder.host.optimizer_hooks": frozenset(
        {
            "Patches.wrap",
            "register_optimizer_step_pre_hook",
            "register_optimizer_step_post_hook",
        }
    ),
    # Beside the kernels of `collective_operators`, which torch's dispatcher calls.
    "fsdpdoctor.recorder.host.collective_calls": frozenset({"Patches.put"}),
    "fsdpdoctor.recorder.host.plain_roots": frozenset(
        {
            "Patches.wrap",
            "register_module_forward_pre_hook",
            "register_module_forward_hook",
        }
    ),
    # In one step of the run, see [Note: The memory step].
    "fsdpdoctor.recorder.memory.memory_step": frozenset({"Patches.wrap"}),
    "fsdpdoctor.recorder.memory.unit_places": frozenset({"Patches.wrap"}),
    "fsdpdoctor.recorder.memory.storage_mode": frozenset({"TorchDispatchMode"}),
    # Calls methods of FSDPModule as a plan says, which the user has asked for.
    "fsdpdoctor.recorder.changes.apply_plan": frozenset(
        {
            "Patches.put",
            "register_optimizer_step_pre_hook",
            "register_optimizer_step_post_hook",
        }
    ),
    "fsdpdoctor.recorder.changes.fully_shard_override": frozenset({"Patches.put"}),
    "fsdpdoctor.recorder.fsdp2.step_watch": frozenset(
        {"Patches.put", "register_optimizer_step_post_hook"}
    ),
    "fsdpdoctor.recorder.launch.profiler_capture": frozenset({"Patches.put"}),
    "fsdpdoctor.recorder.launch.sigterm": frozenset(
        {"Patches.put", "signal.signal", "set_wakeup_fd"}
    ),
    "fsdpdoctor.recorder.launch.fatal_signals": frozenset(
        {"Patches.put", "register_at_fork"}
    ),
    # Of a script whose threads go on: as Python has waited for them.
    "fsdpdoctor.recorder.launch.after_threads": frozenset({"atexit.register"}),
    # While the report is made, and as it was again.
    "fsdpdoctor.recorder.launch.closing_words": frozenset({"signal.signal"}),
}
"""What each module does that makes others call it, or changes what they see."""

_UNITS = "fsdpdoctor.recorder.fsdp2.param_group_hooks:UnitHooks"
_STATES = "fsdpdoctor.recorder.fsdp2.state_hooks:StateHooks"
_GATHERS = "fsdpdoctor.recorder.fsdp2.all_gather_hooks:GatherHooks"
_REDUCES = "fsdpdoctor.recorder.fsdp2.reduce_hooks:ReductionHooks"
_REGISTRY = "fsdpdoctor.recorder.fsdp2.unit_registry:Units"
_GROUPS = "fsdpdoctor.recorder.fsdp2.process_groups:Groups"
_STEPS = "fsdpdoctor.recorder.steps.steps:Steps"
_PASSES = "fsdpdoctor.recorder.steps.root_passes:RootPasses"
_MODEL = "fsdpdoctor.recorder.host.model_spec:ModelWatch"
_HOST = "fsdpdoctor.recorder.host.host_hooks:HostHooks"
_COLLECTIONS = "fsdpdoctor.recorder.host.collection_watch:CollectionWatch"
_OPTIMIZERS = "fsdpdoctor.recorder.host.optimizer_hooks:OptimizerHooks"
_ROOTS = "fsdpdoctor.recorder.host.plain_roots:PlainRoots"
_SESSION = "fsdpdoctor.recorder.session:Session"
_HOOKS = "fsdpdoctor.recorder.fsdp2.installed_hooks:FsdpHooks"
_RECORDING = "fsdpdoctor.recorder.storage.recording:Recording"
_COUNTED = "fsdpdoctor.recorder.memory.memory_step:MemoryWatch"
_PLACES = "fsdpdoctor.recorder.memory.unit_places:UnitPlaces"
_MODE = "fsdpdoctor.recorder.memory.storage_mode:StorageMode"
_START = "fsdpdoctor.recorder.host.start_watch:StartWatch"
_MEMORY = "fsdpdoctor.recorder.storage.memory_samples:HostMemory"
_SAMPLING = "fsdpdoctor.recorder.storage.sampling:Adaptive"
_HEADERS = "fsdpdoctor.recorder.rank_header:Headers"
_WRITER = "fsdpdoctor.run_writer:RankWriter"
_BEAT = "fsdpdoctor.run_writer:Heartbeat"
_REPLAY = "fsdpdoctor.recorder.tape.replay:Replay"
_TAPED = "fsdpdoctor.recorder.tape.hooks:TapedHooks"
_TUNER = "fsdpdoctor.recorder.autotune.autotuner:Autotuner"
_TOLD = "fsdpdoctor.recorder.autotune.passes:Passes"
_FORCE = "fsdpdoctor.recorder.autotune.in_force:InForce"
_VOTER = "fsdpdoctor.recorder.autotune.agreement:Voter"
_LENGTHS = "fsdpdoctor.recorder.autotune.step_lengths:StepLengths"
_ROOM = "fsdpdoctor.recorder.autotune.memory_room:MemoryRoom"
_LOG = "fsdpdoctor.recorder.storage.settings_log:SettingsLog"
_TUNED = "fsdpdoctor.recorder.storage.settings_log:TunedSampling"


def _of(owner: str, names: str) -> tuple[str, ...]:
    return tuple(f"{owner}.{name}" for name in names.split())


TUNING: tuple[str, ...] = (
    *_of(_TUNER, "attach pass_begins no_grad_begins optimizer_begins"),
    *_of(_TUNER, "_meet _reached _begin _switch _measure _use _sum_up"),
    *_of(_TOLD, "attach detach _begins"),
    *_of(_FORCE, "use optimizer_begins put_back"),
    *_of(_VOTER, "reached"),
    *_of(_LENGTHS, "begins"),
    *_of(_ROOM, "look"),
    *_of(_LOG, "uses"),
    *_of(_TUNED, "changed"),
)
"""Of CALLBACKS: those of a job that tunes itself."""

CALLBACKS: tuple[str, ...] = (
    *_of(_UNITS, "_unshard_begins _unshard_ended _wait_begins _wait_ended"),
    *_of(_UNITS, "_reshard_begins _reshard_ended"),
    *_of(_UNITS, "_pre_forward_begins _pre_forward_ended _post_forward_begins"),
    *_of(_UNITS, "_pre_backward_begins _pre_backward_ended _post_backward_begins"),
    *_of(_UNITS, "_hook_ended _finalize_begins _finalize_ended"),
    *_of(_UNITS, "_reduce_wait_begins _bracket_wait"),
    *_of(_STATES, "_root_begins _root_begun _root_ends _forward_ended"),
    *_of(_STATES, "_backward_begins _backward_begun"),
    *_of(_STATES, "_callback_begins _callback_ended _casts"),
    *_of(_GATHERS, "_begins _returned _wait _copied_out begins copied_in returned"),
    *_of(_GATHERS, "wait_begins waited copied_out"),
    *_of(_REDUCES, "_begins _issues begins allocates issues ended reduced"),
    *_of(_REPLAY, "catch_up catch_up_beside start_anew"),
    *_of(_TAPED, "start_anew"),
    *_of(_REGISTRY, "of index_of_params new_op resume cut_windows"),
    *_of(_GROUPS, "index"),
    *_of(_STEPS, "begin root_forward_begins root_forward_ended backward_begins"),
    *_of(_STEPS, "backward_ended plain_backward_ended optimizer_ended finish"),
    *_of(_STEPS, "optimizer_made optimizer_begins optimizer_skipped"),
    *_of(_PASSES, "begins ended"),
    *_of(_MODEL, "saw_root saw_optimizer saw_checkpoint saw_sharded add_root"),
    *_of(_MODEL, "signature units spec"),
    *_of(_HOST, "attach detach turn _see_input _see_clipping"),
    *_of(_COLLECTIONS, "turn _begins _ended"),
    *_of(_OPTIMIZERS, "attach detach _made _scaler_begins _scaler_ended"),
    *_of(_HOST, "_see_checkpoints _see_recomputation count"),
    *_of(_ROOTS, "attach detach fsdp2_seen"),
    *_of(_SESSION, "turn boundary pass_boundary tree_known root_forward"),
    *_of(_SESSION, "step_recorded step_timed"),
    *_of(_SESSION, "_describe _drain _write_rest _write_step _note_bypass"),
    *_of(_HOOKS, "build install undo"),
    *_of(_RECORDING, "host_span rows drop new_seq"),
    *_of(_MEMORY, "sample sample_pass count"),
    *_of(_START, "attach detach forward_began step_ended spec"),
    *_of(_COUNTED, "root_forward passed boundary stop"),
    *_of(_PLACES, "_gathers _gathered _copies _copied _frees _freed _resized now"),
    *_of(_PLACES, "_enters_forward _entered_forward _leaves_forward _left_forward"),
    *_of(_PLACES, "_enters_backward _entered_backward _reduces _has_reduced"),
    *_of(_PLACES, "moment mark mark_unit mark_outside install remove"),
    *_of(_MODE, "refusal begin look settle end"),
    *_of(_SAMPLING, "records learn"),
    *_of(_HEADERS, "of_rank write_run"),
    *_of(_WRITER, "write_step write_header close"),
    *_of(_BEAT, "beat beat_at flush close"),
    *TUNING,
)
"""Our functions that run between two lines of somebody's training, or at its ends."""
