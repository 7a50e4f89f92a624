"""A GPU that is not there: virtual time, priced kernels, a modelled allocator.

[Note: The virtual device] The script, FSDP2 and autograd run for real; tensors have
shapes and no storage, and no kernel runs. The host's clock is a number that each
call moves on (`host_clock`). A stream is a number, too: until when it is busy. What
is put on it starts when it is free and the host has got there; an event copies the
number, waiting for one takes the larger of two (`streams`). So a rehearsal sleeps
nowhere and gives the same times whenever it is run. What an operation takes is read
from its shapes (`pricing/`), memory comes from an allocator that splits and merges
blocks as CUDA's caching one (`caching_allocator`).

For torch, a tensor on the device is a meta tensor whose storage is known to
`storages`. C++ sees `meta`, and computes shapes and gradients as ever; Python is
answered `cuda:0` (`function_mode`). Below autograd, `dispatch_mode` sees each
operation once and charges it.
"""
