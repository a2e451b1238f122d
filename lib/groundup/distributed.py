"""Several processes that train one model: what they share, and what happens when one is gone.

Each process, a *worker*, runs the same program on its own rows of the same batches. Everything
here also works for a process on its own, which then has nobody to wait for.
"""

import datetime
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Parallel = Literal["ddp", "fsdp"]
Thing = TypeVar("Thing")

PATIENCE = datetime.timedelta(minutes=10)
"""Longest wait for a worker that is there but does not answer."""


class WorkerLostError(RuntimeError):
    """A worker is gone, and the others cannot go on without it."""


def rank() -> int:
    """Give the number of this worker, counted from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def num_workers() -> int:
    """Count the workers, this one included."""
    return dist.get_world_size() if dist.is_initialized() else 1


@contextmanager
def join(device: torch.device, patience: datetime.timedelta = PATIENCE) -> Iterator[None]:
    """Meet the other workers, whose number and address `torchrun` left in the environment.

    Args:
        device: Where this worker computes; decides how tensors travel.
        patience: Longest wait for a worker that does not answer.

    Raises:
        WorkerLostError: If another worker ends, or does not answer, before the work is done.

    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=patience)
    try:
        peers: list[tuple[str, int]] = [("", 0)] * num_workers()
        dist.all_gather_object(peers, (socket.gethostname(), os.getpid()))
        yield
    except RuntimeError as error:
        gone = _gone(peers)
        if not gone and not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise  # a mistake of this worker's own
        if not gone:
            raise WorkerLostError(
                f"all workers must answer within {patience}, one did not"
            ) from error
        names = ", ".join(f"worker {number} (process {peers[number][1]})" for number in gone)
        raise WorkerLostError(
            f"all workers must stay until the end, but {names} is gone"
        ) from error
    finally:
        dist.destroy_process_group()


def _gone(peers: list[tuple[str, int]]) -> list[int]:
    """List the workers on this machine whose process has ended."""
    here = socket.gethostname()
    time.sleep(0.5)  # the connection breaks a moment before the process is no more
    return [n for n, (host, process) in enumerate(peers) if host == here and not _alive(process)]


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # gone by now, or a system that does not tell
        return not Path("/proc/self/stat").exists()
    return state != "Z"  # ended, but its parent has not asked after it yet


def total(number: Tensor) -> Tensor:
    """Add up what each worker has."""
    if num_workers() == 1:
        return number
    number = number.clone()
    dist.all_reduce(number)
    return number


def shared(thing: Thing) -> Thing:
    """Give every worker what worker 0 has."""
    things = [thing]
    if num_workers() > 1:
        dist.broadcast_object_list(things)
    return things[0]


def collected(tensor: Tensor) -> list[Tensor]:
    """Give every worker what each worker has, in order; all have the same shape."""
    if num_workers() == 1:
        return [tensor]
    tensors = [torch.empty_like(tensor) for _ in range(num_workers())]
    dist.all_gather(tensors, tensor)
    return tensors


def spread(model: nn.Module, parallel: Parallel) -> nn.Module:
    """Let the workers train a model together.

    Either every worker keeps the whole model and the gradients are averaged (`ddp`), or each
    keeps a slice of every parameter, of its gradient and of the optimizer's averages, and the
    workers bring a block together only while it is computed (`fsdp`).

    Args:
        model: Equal on all workers. Its stacks of blocks are module lists.
        parallel: How.

    Returns:
        What to call and train. For `fsdp` it is the model itself, changed.

    Source:
        Li et al. 2020, PyTorch Distributed: Experiences on Accelerating Data Parallel Training,
        https://arxiv.org/abs/2006.15704; Zhao et al. 2023, PyTorch FSDP: Experiences on Scaling
        Fully Sharded Data Parallel, https://arxiv.org/abs/2304.11277

    """
    if parallel == "ddp":
        return nn.parallel.DistributedDataParallel(model, forward_sync_buffers=False)
    from torch.distributed.device_mesh import init_device_mesh  # a second that only this needs
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (num_workers(),))
    for stack in model.children():
        if isinstance(stack, nn.ModuleList):
            for block in stack:
                fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # what is left is one group: tied tables stay one parameter
    return model


def exchange_gradients(model: nn.Module, exchange: bool) -> None:
    """Say whether the next pass through the model exchanges gradients with other workers.

    Of several passes before one update only the last has to.
    """
    if num_workers() == 1:
        return
    from torch.distributed.fsdp import FSDPModule

    model = bare(model, nn.parallel.DistributedDataParallel)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model.require_backward_grad_sync = exchange
    elif isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(exchange)


def bare(model: nn.Module, *stop_at: type[nn.Module]) -> nn.Module:
    """Unpack a model from what compiles it or spreads it over workers."""
    while not isinstance(model, stop_at):
        if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        elif isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            break
    return model


def whole(tensor: Tensor) -> Tensor:
    """Bring the slices of a tensor together; every worker has to take part."""
    if num_workers() == 1:
        return tensor
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copy_whole(model: nn.Module, into: nn.Module) -> None:
    """Bring the slices of a model together in another on worker 0; every worker takes part.

    Args:
        model: Spread over the workers.
        into: Of the same kind and whole; changed on worker 0 only.

    """
    for ours, theirs in zip(bare(model).parameters(), into.parameters(), strict=True):
        value = whole(ours.detach())
        if rank() == 0:
            theirs.data.copy_(value)


def sliced_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Keep of a tensor, which each worker has whole, the slice that this one has of another."""
    if num_workers() == 1:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(other, DTensor):
        return tensor
    # without a source, each worker cuts from its own copy and nothing is sent
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)
