"""What goes wrong, or goes another way, within a step of a training that goes on, by
name. Each is told the step's number, the model and its optimizer, and gives the loss of
a step of its own; None: the step is as ever.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.faults.oddities import say

Loss = Callable[[], Any]


class Staged(Exception):
    """Raised and caught here."""


def _raising(module: nn.Module, loss: Loss, error: type[BaseException]) -> None:
    def raises(*args: object) -> None:
        raise error("staged")

    handle = module.register_forward_pre_hook(raises)
    with contextlib.suppress(error):
        loss().backward()
    handle.remove()


def forward_caught(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """A forward raises, which the script goes on from, as after a lack of memory."""
    if step == 6:
        _raising(model[1], loss, Staged)
        optimizer.zero_grad()


def interrupt_caught(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """The same of an interrupt."""
    if step == 6:
        _raising(model[1], loss, KeyboardInterrupt)


def memory_caught(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """The same where memory is short."""
    if step == 6:
        _raising(model[1], loss, MemoryError)


def exit_caught(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """The same of what would end the script."""
    if step == 6:
        _raising(model[1], loss, SystemExit)


def optimizer_caught(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """An optimizer step raises, and is taken once more."""
    if step == 6:

        def raises(*args: object) -> None:
            raise Staged

        handle = optimizer.register_step_pre_hook(raises)
        loss().backward()
        with contextlib.suppress(Staged):
            optimizer.step()
        handle.remove()
        optimizer.zero_grad()


def no_optimizer_step(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """Gradients that are thrown away, as after an overflow."""
    if step % 3 == 2:
        loss().backward()
        optimizer.zero_grad()


def gradients_asked_for(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """Gradients of gradients, of a model that is no unit."""
    if step in (4, 8):
        x = torch.ones(3, device="cpu", requires_grad=True)
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        say(second.tolist())


def functional(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """`torch.func`: a model as a function, mapped and derived."""
    if step in (4, 8):
        torch.manual_seed(step)
        other = nn.Linear(3, 2)
        weights = dict(other.named_parameters())

        def of(weights: Any, x: torch.Tensor) -> Any:
            return torch.func.functional_call(other, weights, (x,)).square().sum()

        found = torch.func.vmap(torch.func.grad(of), in_dims=(None, 0))(
            weights, torch.ones(4, 3)
        )
        say(found["bias"].sum().item().hex())


def fake_tensors(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """A model is tried out with tensors that hold nothing, and traced."""
    if step in (4, 8):
        fake = importlib.import_module("torch._subclasses.fake_tensor")
        proxy = importlib.import_module("torch.fx.experimental.proxy_tensor")
        with fake.FakeTensorMode():
            other = nn.Linear(3, 2)
            say(tuple(other(torch.ones(4, 3)).shape))
            other(torch.ones(4, 3)).sum().backward()
            torch.optim.SGD(other.parameters()).step()
        traced = proxy.make_fx(lambda x: torch.relu(x) + 1)(torch.ones(2))
        say(len(traced.graph.nodes))


def traced(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """A plain model is traced by jit and by fx."""
    if step in (4, 8):
        torch.manual_seed(step)
        other = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
        jit: Any = torch.jit
        say(jit.trace(other, torch.ones(4, 3))(torch.ones(4, 3)).sum().item())
        say(torch.fx.symbolic_trace(other)(torch.ones(4, 3)).sum().item())


def saved_and_loaded(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """A checkpoint is written, and read again."""
    if step in (4, 8):
        file = io.BytesIO()
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(kept, file)
        file.seek(0)
        found = torch.load(file, weights_only=False)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        say(len(file.getvalue()))


def copied(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """An average of weights, an optimizer that is pickled, and hooks that are not."""
    if step in (4, 8):
        average = [copy.deepcopy(p.detach()).full_tensor() for p in model.parameters()]
        say(sum(one.sum().item() for one in average).hex())
        say(len(pickle.dumps(optimizer.state_dict())), sorted(vars(optimizer)))
        say(sorted(vars(model[0]))[:40])


def hooks_removed(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """Hooks of all modules and optimizers are thrown away, whoever they are of."""
    if step == 5:
        modules = importlib.import_module("torch.nn.modules.module")
        optimizers = importlib.import_module("torch.optim.optimizer")
        for owner in (modules, optimizers):
            for name in [n for n in vars(owner) if n.startswith("_global_")]:
                hooks = getattr(owner, name)
                if isinstance(hooks, dict):
                    hooks.clear()


def another_model(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """Models are built, sharded, trained and let go of, in the midst of another."""
    if step in (4, 7, 10):
        torch.manual_seed(step)
        other: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        fully_shard(other[0])
        fully_shard(other)
        its = torch.optim.AdamW(other.parameters())
        for _ in range(2):
            value = other(torch.ones(2, 4)).square().mean()
            value.backward()
            its.step()
            its.zero_grad()
        say(value.item().hex())


def in_a_thread(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """Whole steps run in threads of their own, which end."""
    if step in (3, 4, 5, 9):

        def train() -> None:
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()


def closures(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """An optimizer calls the passes itself, more than once."""
    if step in (4, 8):

        def closure() -> Any:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        say(optimizer.step(closure).item().hex())
        optimizer.zero_grad()


def without_gradients(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """An evaluation, once without gradients and once in inference mode's own way."""
    if step in (4, 8):
        model.eval()
        with torch.no_grad():
            say(loss().item().hex())
        model.train()
        with torch.inference_mode():
            say(torch.ones(2, device="cpu").sum().item())


def frozen_meanwhile(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """A layer's parameters want no gradients for a while."""
    if step in (4, 8):
        for parameter in model[0].parameters():
            parameter.requires_grad_(step == 8)


def alarmed(step: int, model: Any, optimizer: Any, loss: Loss) -> None:
    """A time limit strikes within a pass, and the script goes on."""
    if step == 6:

        def late(number: int, frame: object) -> None:
            raise TimeoutError

        def waits(*args: object) -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            signal.pause()

        signal.signal(signal.SIGALRM, late)
        handle = model[2].register_forward_pre_hook(waits)
        with contextlib.suppress(TimeoutError):
            loss()
        handle.remove()


CAUGHT: dict[str, Callable[[int, Any, Any, Loss], None]] = {
    "forward-caught": forward_caught,
    "interrupt-caught": interrupt_caught,
    "memory-caught": memory_caught,
    "exit-caught": exit_caught,
    "optimizer-caught": optimizer_caught,
    "no-optimizer-step": no_optimizer_step,
    "gradients-asked-for": gradients_asked_for,
    "functional": functional,
    "fake-tensors": fake_tensors,
    "traced": traced,
    "saved-and-loaded": saved_and_loaded,
    "copied": copied,
    "hooks-removed": hooks_removed,
    "another-model": another_model,
    "in-a-thread": in_a_thread,
    "closures": closures,
    "without-gradients": without_gradients,
    "frozen-meanwhile": frozen_meanwhile,
    "alarmed": alarmed,
}
