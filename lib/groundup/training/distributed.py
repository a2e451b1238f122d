"""Training one model in several processes: collectives, sharding, and lost workers.

Each process, a *worker*, runs the same program on its own rows of the same batches. Everything
here also works in a single process, where the collectives do nothing.
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
"""Longest wait for a worker that is alive but does not answer."""


class WorkerLostError(RuntimeError):
    """Another worker died or stopped answering, so training cannot continue."""


def rank() -> int:
    """Return the index of this worker, counted from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def num_workers() -> int:
    """Count the workers, this one included."""
    return dist.get_world_size() if dist.is_initialized() else 1


@contextmanager
def join(device: torch.device, patience: datetime.timedelta = PATIENCE) -> Iterator[None]:
    """Join the process group that `torchrun` describes in the environment, and leave it at the end.

    Args:
        device: Where this worker computes; decides the communication backend.
        patience: Longest wait for a worker that does not answer.

    Raises:
        WorkerLostError: If another worker ends, or stops answering, once the group exists.

    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=patience)
    try:
        peers: list[tuple[str, int]] = [("", 0)] * num_workers()
        dist.all_gather_object(peers, (socket.gethostname(), os.getpid()))
        yield
    except RuntimeError as error:
        ended = _ended(peers)
        if not ended and not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise  # an error of this worker's own
        if not ended:
            raise WorkerLostError(
                f"all workers must answer within {patience}, one did not"
            ) from error
        names = ", ".join(f"worker {number} (process {peers[number][1]})" for number in ended)
        raise WorkerLostError(f"all workers must run until the end, but {names} ended") from error
    finally:
        dist.destroy_process_group()


def _ended(peers: list[tuple[str, int]]) -> list[int]:
    """List the workers on this machine whose process has ended."""
    here = socket.gethostname()
    time.sleep(0.5)  # the connection breaks a moment before the process ends
    return [n for n, (host, process) in enumerate(peers) if host == here and not _is_alive(process)]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # just ended, or a system without /proc
        return not Path("/proc/self/stat").exists()
    return state != "Z"  # a zombie has ended, but its parent has not reaped it yet


def total(number: Tensor) -> Tensor:
    """Sum a tensor over all workers."""
    if num_workers() == 1:
        return number
    number = number.clone()
    dist.all_reduce(number)
    return number


def shared(thing: Thing) -> Thing:
    """Broadcast an object from worker 0 to all workers."""
    things = [thing]
    if num_workers() > 1:
        dist.broadcast_object_list(things)
    return things[0]


def collected(tensor: Tensor) -> list[Tensor]:
    """Gather a tensor from each worker, all of the same shape, on every worker, by rank."""
    if num_workers() == 1:
        return [tensor]
    tensors = [torch.empty_like(tensor) for _ in range(num_workers())]
    dist.all_gather(tensors, tensor)
    return tensors


def parallelise(model: nn.Module, parallel: Parallel) -> nn.Module:
    """Wrap or shard a model for data-parallel training.

    With `ddp`, every worker holds the whole model and gradients are averaged. With `fsdp`, each
    worker holds a shard of every parameter, its gradient and its optimizer state, and the
    parameters of a block are gathered only while it is computed.

    Args:
        model: Identical on all workers. Its stacks of blocks are module lists.
        parallel: Which of the two.

    Returns:
        The module to call and train. For `fsdp` it is `model` itself, changed in place.

    Source:
        Li et al. 2020, PyTorch Distributed: Experiences on Accelerating Data Parallel Training,
        https://arxiv.org/abs/2006.15704; Zhao et al. 2023, PyTorch FSDP: Experiences on Scaling
        Fully Sharded Data Parallel, https://arxiv.org/abs/2304.11277

    """
    if parallel == "ddp":
        return nn.parallel.DistributedDataParallel(model, forward_sync_buffers=False)
    # Takes a second, and only this needs it.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (num_workers(),))
    for stack in model.children():
        if isinstance(stack, nn.ModuleList):
            for block in stack:
                fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # the rest is one group: tied embeddings stay one parameter
    return model


def exchange_gradients(model: nn.Module, exchange: bool) -> None:
    """Set whether the next backward pass averages gradients over the workers.

    When gradients are accumulated over several passes, only the last one has to.
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
    """Unwrap a model from `torch.compile` and DDP, down to the first of the types in `stop_at`."""
    while not isinstance(model, stop_at):
        if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        elif isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            break
    return model


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor; a collective call, so every worker must make it."""
    if num_workers() == 1:
        return tensor
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copy_whole(model: nn.Module, into: nn.Module) -> None:
    """Gather a model's parameters into another model on worker 0; every worker must call this.

    Args:
        model: As `parallelise` returns it.
        into: Same architecture, not sharded; changed in place, on worker 0 only.

    """
    for ours, theirs in zip(bare(model).parameters(), into.parameters(), strict=True):
        value = whole(ours.detach())
        if rank() == 0:
            theirs.data.copy_(value)


def sliced_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Shard a tensor, which every worker holds in full, in the same way as another."""
    if num_workers() == 1:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(other, DTensor):
        return tensor
    # without a source rank, each worker slices its own copy and nothing is sent
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)
