"""A trained model on disk: `config.json`, `model.safetensors`, `training.safetensors`.

Tensors and text only: nothing in these files can run when they are read. Each file is written
beside its place and then moved there, so a reader, or a run that was cut off, finds the old
file or the new one, whole.

`model.safetensors` is for use. `training.safetensors` is for going on: weights, optimizer,
random state and step belong together, so they are one file.

GPT-2 and Llama are also read and written as Hugging Face's `transformers` does; `conversion` says
what is called what.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from groundup.config import DecoderOnlyConfig, EncoderDecoderConfig, EncoderOnlyConfig
from groundup.conversion import (
    from_hugging_face_config,
    from_hugging_face_weights,
    to_hugging_face_config,
    to_hugging_face_weights,
)
from groundup.distributed import bare, collected, rank, sliced_like, whole
from groundup.models import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly
from groundup.tokenizers import Tokenizer
from groundup.tokenizers import from_dict as tokenizer_from_dict

Model = TypeVar("Model", bound=nn.Module)
FORMAT = 1
"""Goes up when the files change in a way that older readers would misread."""

_MODELS: dict[str, tuple[type[AnyModel], Any]] = {
    "DecoderOnly": (DecoderOnly, DecoderOnlyConfig),
    "EncoderOnly": (EncoderOnly, EncoderOnlyConfig),
    "EncoderDecoder": (EncoderDecoder, EncoderDecoderConfig),
}


@dataclass(kw_only=True, slots=True)
class Checkpoint:
    """What was saved, ready for use."""

    model: AnyModel
    """In evaluation mode."""
    tokenizers: dict[str, Tokenizer]
    """By what they are for, such as `text`, or `source` and `target`."""
    notes: dict[str, Any]
    """What else is worth knowing: data, preset, seed. Anything that JSON holds."""


def save(
    folder: str | Path,
    model: AnyModel,
    tokenizers: Mapping[str, Tokenizer],
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Write a model for later use.

    Tied weights are one parameter, and are written once.

    Args:
        folder: Made if it is not there.
        model: What to save; its configuration goes along.
        tokenizers: By what they are for.
        notes: Anything that JSON holds.

    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "format": FORMAT,
        "model": type(model).__name__,
        "config": model.config.to_dict(),
        "tokenizers": {name: tokenizer.to_dict() for name, tokenizer in tokenizers.items()},
        "notes": dict(notes or {}),
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    _write(folder / "config.json", text.encode())
    _write(folder / "model.safetensors", to_bytes(_parameters(model)))


def load(folder: str | Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read what `save` wrote.

    Raises:
        ValueError: If a file is missing or damaged, the configuration has an unknown field, or
            the weights have other names or shapes than the configuration asks for.

    """
    path = Path(folder) / "config.json"
    record = _read_config(path)
    model_class, config_class = _MODELS[record["model"]]
    model = _blank(model_class, config_class.from_dict(record["config"]))
    tensors, _ = _read(Path(folder) / "model.safetensors")
    _copy_into(model, tensors, Path(folder) / "model.safetensors")
    tokenizers = {
        name: tokenizer_from_dict(fields) for name, fields in record["tokenizers"].items()
    }
    return Checkpoint(model=model.to(device).eval(), tokenizers=tokenizers, notes=record["notes"])


def from_hugging_face(folder: str | Path, dtype: torch.dtype | None = None) -> DecoderOnly:
    """Read a GPT-2 or a Llama that `transformers` wrote.

    Args:
        folder: Holds `config.json`, and `model.safetensors` or the parts that
            `model.safetensors.index.json` lists.
        dtype: What the numbers are rounded to; by default that of the file.

    Returns:
        The model, in evaluation mode.

    Raises:
        ValueError: If a file is missing or damaged, if it is another kind of model, or if its
            weights are pickled only.

    """
    folder = Path(folder)
    fields = _read_json(folder / "config.json", "a model")
    config = from_hugging_face_config(fields)
    weights = from_hugging_face_weights(_read_parts(folder), config)
    model = _blank(DecoderOnly, config)
    model.to(dtype or weights["embedding.tokens.weight"].dtype)
    _copy_into(model, weights, folder)
    return model.eval()


def to_hugging_face(model: DecoderOnly, folder: str | Path) -> None:
    """Write a model so that `transformers` reads it as a GPT-2 or a Llama.

    Learned positions make it a GPT-2, rotary ones a Llama.

    Args:
        model: What to write.
        folder: Made if it is not there.

    Raises:
        ValueError: If neither GPT-2 nor Llama has what the model is made of.

    """
    folder = Path(folder)
    record = to_hugging_face_config(model.config)
    weights = to_hugging_face_weights(_parameters(model), model.config)
    record["dtype"] = str(model.unembedding.weight.dtype).removeprefix("torch.")
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", (json.dumps(record, indent=2) + "\n").encode())
    # Versions before 5 refuse a file that does not say that it comes from torch.
    _write(folder / "model.safetensors", to_bytes(weights, metadata={"format": "pt"}))


def save_training(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    step: int,
) -> None:
    """Write what it takes to go on with training as if it had not stopped.

    Torch's global random state goes along: dropout draws from it. Several workers take part
    together, and the first writes; any number of workers can go on from the file.

    Args:
        folder: Made if it is not there.
        model: Its weights after `step` updates. May be compiled, or spread over workers.
        optimizer: Its averages after as many.
        generator: What the batches are drawn with.
        step: Number of updates made.

    """
    tensors = {f"model.{name}": whole(p) for name, p in _parameters(bare(model)).items()}
    for index, averages in optimizer.state_dict()["state"].items():
        for name, tensor in averages.items():
            tensors[f"optimizer.{index}.{name}"] = whole(tensor)
    tensors |= {f"random.{name}": state for name, state in _random_states(generator).items()}
    if rank() > 0:
        return
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "training.safetensors", to_bytes(tensors, metadata={"step": str(step)}))


def load_training(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
) -> int:
    """Bring a model, its optimizer and the random states back to where they were.

    Args:
        folder: Where `save_training` wrote.
        model: Of the same configuration; its weights are overwritten.
        optimizer: Made for this model, as it was then.
        generator: What the batches will be drawn with.

    Returns:
        Number of updates made so far.

    Raises:
        ValueError: If the file is missing or damaged, or belongs to another model.

    """
    path = Path(folder) / "training.safetensors"
    tensors, metadata = _read(path)
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "random": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    _copy_into(bare(model), parts["model"], path)
    state = _averages(optimizer, parts["optimizer"], path)
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    generator.set_state(parts["random"]["generator"])
    # A worker that was not there before draws from what its caller seeded it with.
    if (before := parts["random"].get(f"cpu.{rank()}")) is not None:
        torch.set_rng_state(before)
    before = parts["random"].get(f"cuda.{rank()}")
    if before is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(before)
    return int(metadata["step"])


def _read_config(path: Path) -> dict[str, Any]:
    record = _read_json(path)
    for name in ("format", "model", "config", "tokenizers", "notes"):
        if name not in record:
            raise ValueError(f"config.json needs the field {name}, which {path} lacks")
    if record["format"] != FORMAT:
        raise ValueError(f"config.json must have format {FORMAT}, got {record['format']} in {path}")
    if record["model"] not in _MODELS:
        raise ValueError(
            f"model must be one of {', '.join(_MODELS)}, got {record['model']} in {path}"
        )
    return record


def _read_json(path: Path, owner: str = "a checkpoint") -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{owner} needs its {path.name}, got {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path.name} must be JSON in UTF-8, got {path}: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{path.name} must hold named fields, got something else in {path}")
    return record


def _read_parts(folder: Path) -> dict[str, Tensor]:
    """Read weights that lie in one file, or in several that an index lists."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        pickles = sorted(folder.glob("*.bin"))
        if pickles and not (folder / "model.safetensors").exists():
            raise ValueError(
                "weights must be in model.safetensors, because a pickle can run any code when it "
                f"is read, got {pickles[0].name} only in {folder}"
            )
        return _read(folder / "model.safetensors")[0]
    place_of = _read_json(index, "a model").get("weight_map")
    if not isinstance(place_of, dict):
        raise ValueError(f"{index.name} needs the field weight_map, which {index} lacks")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(place_of.values())):
        if Path(name).name != name:
            raise ValueError(f"weights must lie beside their index, got {name} in {index}")
        weights |= _read(folder / name)[0]
    for name in sorted(place_of.keys() ^ weights.keys()):
        raise ValueError(f"parts must hold what their index lists, got {index} and {name}")
    return weights


def _blank(model_class: Callable[[Any], Model], config: Any) -> Model:
    """Make a model whose weights will be overwritten, and leave torch's random state alone."""
    with torch.random.fork_rng(devices=[]):
        return model_class(config)


def _random_states(generator: torch.Generator) -> dict[str, Tensor]:
    states = {"generator": generator.get_state()}
    for number, state in enumerate(collected(torch.get_rng_state())):
        states[f"cpu.{number}"] = state
    if torch.cuda.is_available():
        for number, state in enumerate(collected(torch.cuda.get_rng_state())):
            states[f"cuda.{number}"] = state
    return states


def _averages(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], path: Path
) -> dict[int, dict[str, Tensor]]:
    """Sort what an optimizer remembers by parameter, each worker its own slice."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, average = name.partition(".")
        own = parameters[int(index)] if int(index) < len(parameters) else None
        if own is None or (tensor.ndim and tensor.shape != own.shape):
            raise ValueError(f"averages must be those of this optimizer, got {name} in {path}")
        # A count of updates is one number, which nobody slices.
        state.setdefault(int(index), {})[average] = (
            sliced_like(tensor.to(own.device), own) if tensor.ndim else tensor
        )
    return state


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    # Tied weights come once: `named_parameters` lists each parameter under its first name.
    return {name: p.detach().contiguous() for name, p in model.named_parameters()}


def _copy_into(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    parameters = dict(model.named_parameters())
    for name in sorted(parameters.keys() ^ tensors.keys()):
        problem = "lacks" if name in parameters else "has an unknown"
        raise ValueError(
            f"weights must be those of the configuration, got {path}: {problem} {name}"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                raise ValueError(
                    "weights must have the shapes of the configuration, got "
                    f"{name} {tuple(tensors[name].shape)} in {path} instead of "
                    f"{tuple(parameter.shape)}"
                )
            parameter.copy_(sliced_like(tensors[name].to(parameter.device), parameter))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except FileNotFoundError:
        raise ValueError(f"a checkpoint needs its {path.name}, got no file {path}") from None
    except SafetensorError as error:
        raise ValueError(f"a safetensors file must be whole, got {path}: {error}") from None


def _write(path: Path, content: bytes) -> None:
    """Write a file beside its place, then move it there in one step."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
