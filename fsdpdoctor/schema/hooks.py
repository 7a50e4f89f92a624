"""FSDP2's own words for its hooks, as its profiler labels and records name them."""

from __future__ import annotations

from enum import StrEnum


class Hook(StrEnum):
    """A hook of FSDP2, or a part of one."""

    ALL_GATHER = "all_gather"
    ALL_GATHER_COPY_OUT = "all_gather_copy_out"
    PRE_FORWARD = "pre_forward"
    POST_FORWARD = "post_forward"
    PRE_BACKWARD = "pre_backward"
    POST_BACKWARD = "post_backward"  # whole, as records have it; labels name its parts
    POST_BACKWARD_ACCUMULATE = "post_backward_accumulate"
    POST_BACKWARD_RESHARD = "post_backward_reshard"
    POST_BACKWARD_RS_WAIT = "post_backward_rs_wait"
    POST_BACKWARD_REDUCE = "post_backward_reduce"
    FORWARD_PREFETCH = "forward_prefetch"
    BACKWARD_PREFETCH = "backward_prefetch"
    ROOT_PRE_FORWARD = "root_pre_forward"
    INPUTS_TO_DEVICE = "inputs_to_device"
    CAST_FORWARD_INPUTS = "cast_forward_inputs"
    CAST_FORWARD_OUTPUTS = "cast_forward_outputs"
    ROOT_POST_BACKWARD_CALLBACK = "root_post_backward_callback"
