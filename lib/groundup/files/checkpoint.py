"""A model on disk: `config.json`, `model.safetensors`, `training.safetensors`.

The files hold tensors and text only, so reading them runs no code. Each file is written under a
temporary name in its folder and then renamed: a program that reads it, or resumes an interrupted
run, finds either the old file or the new one, complete.

`model.safetensors` is for inference. `training.safetensors` is for resuming: weights, optimizer
state, random state and step belong together, so they share a file.

Published models, such as GPT-2 and Llama, are read and written in the format of Hugging Face's
`transformers`; `conversion` converts names and layouts.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from groundup import presets
from groundup.core.models import AnyModel, DecoderOnly
from groundup.data.tokenizers import PublishedTokenizer, Tokenizer
from groundup.data.tokenizers import from_dict as tokenizer_from_dict
from groundup.files.conversion import (
    from_hugging_face_config,
    from_hugging_face_weights,
    gemma_as_llama,
    to_hugging_face_config,
    to_hugging_face_weights,
)
from groundup.training.distributed import bare, collected, rank, sliced_like, whole

Model = TypeVar("Model", bound=nn.Module)
FORMAT = 1
"""Increased whenever the files change in a way that older versions would misread."""

_CONFIGS = {model.__name__: config for config, model in presets.MODELS.items()}
"""The class of the configuration, by the name of the model's."""


@dataclass(kw_only=True, slots=True)
class Checkpoint:
    """A saved model, ready for use."""

    model: AnyModel
    """In evaluation mode."""
    tokenizers: dict[str, Tokenizer]
    """By role: `text`, or `source` and `target`."""
    notes: dict[str, Any]
    """Further information, such as data, preset and seed. Anything that JSON can represent."""


def save(
    folder: str | Path,
    model: AnyModel,
    tokenizers: Mapping[str, Tokenizer],
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Write a model for later use.

    Tied weights are one parameter, and are written once.

    Args:
        folder: Created if it does not exist.
        model: Is saved with its configuration.
        tokenizers: By role.
        notes: Anything that JSON can represent.

    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "format": FORMAT,
        "model": type(model).__name__,
        "config": asdict(model.config),
        "tokenizers": {name: tokenizer.to_dict() for name, tokenizer in tokenizers.items()},
        "notes": dict(notes or {}),
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    _write(folder / "config.json", text.encode())
    _write(folder / "model.safetensors", to_bytes(_parameters(model)))


def load(folder: str | Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read what `save` wrote.

    Raises:
        ValueError: If a file is missing or damaged or has another format, if the configuration has
            an unknown field, or if names or shapes of weights do not match the configuration.

    """
    path = Path(folder) / "config.json"
    record = _read_config(path)
    kind = _CONFIGS[record["model"]]
    model = _blank(presets.MODELS[kind], presets.from_dict(kind, record["config"]))
    tensors, _ = _read(Path(folder) / "model.safetensors")
    _copy_into(model, tensors, Path(folder) / "model.safetensors")
    tokenizers = {
        name: tokenizer_from_dict(fields) for name, fields in record["tokenizers"].items()
    }
    return Checkpoint(model=model.to(device).eval(), tokenizers=tokenizers, notes=record["notes"])


def from_hugging_face(folder: str | Path, dtype: torch.dtype | None = None) -> DecoderOnly:
    """Read a GPT-2, Llama, Mistral, Qwen2, Qwen3 or Gemma that `transformers` wrote.

    Args:
        folder: Holds `config.json`, and `model.safetensors` or the parts that
            `model.safetensors.index.json` lists.
        dtype: Of the parameters; by default that of the token embedding in the file.

    Returns:
        The model, in evaluation mode.

    Raises:
        ValueError: If a file is missing or damaged, if it is another kind of model, or if the
            weights are only available as a pickle.

    """
    folder = Path(folder)
    fields = _read_json(folder / "config.json", "a model")
    config = from_hugging_face_config(fields)
    tensors = _read_parts(folder)
    if fields["model_type"] == "gemma":
        tensors = gemma_as_llama(tensors, dtype)
    weights = from_hugging_face_weights(tensors, config)
    model = _blank(DecoderOnly, config)
    model.to(dtype or weights["embedding.tokens.weight"].dtype)
    _copy_into(model, weights, folder)
    return model.eval()


def from_published(folder: str | Path) -> Checkpoint:
    """Read a published model with its tokenizer, as `from_hugging_face` reads the model alone.

    The weights become float32, whatever they are in the files.

    Args:
        folder: A downloaded model: `config.json`, the weights, `tokenizer.json`, and often
            `generation_config.json`.

    Returns:
        The model and its tokenizer `text`. The notes say which ids a prompt starts with and which
        end a text, in `prompt_start` and `ends`.

    Raises:
        ValueError: If a file is missing or damaged, if it is another kind of model, or if the
            tokenizer has more tokens than the model.

    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"a published model needs its tokenizer.json, got no file {path}")
    tokenizer = PublishedTokenizer(path.read_text(encoding="utf-8"))
    model = from_hugging_face(folder, torch.float32)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            "the model must have room for each token of its tokenizer.json, got "
            f"vocab_size={model.config.vocab_size} for {tokenizer.vocab_size} tokens"
        )
    fields = _read_json(folder / "config.json", "a model")
    if (folder / "generation_config.json").is_file():
        fields |= _read_json(folder / "generation_config.json", "a model")
    ends = fields.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    notes = {"data_name": "imported", "prompt_start": tokenizer.prompt_start, "ends": ends}
    return Checkpoint(model=model, tokenizers={"text": tokenizer}, notes=notes)


def to_hugging_face(model: DecoderOnly, folder: str | Path) -> None:
    """Write a model so that `transformers` reads it as a GPT-2, Llama, Mistral or Qwen3.

    Learned positions make it a GPT-2, rotary ones a Llama, with a window a Mistral, with normalised
    queries and keys a Qwen3.

    Args:
        model: What to write.
        folder: Created if it does not exist.

    Raises:
        ValueError: If the model has a part that none of them has.

    """
    folder = Path(folder)
    record = to_hugging_face_config(model.config)
    weights = to_hugging_face_weights(_parameters(model), model.config)
    record["dtype"] = str(model.unembedding.weight.dtype).removeprefix("torch.")
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", (json.dumps(record, indent=2) + "\n").encode())
    # Versions before 5 refuse a file without this entry.
    _write(folder / "model.safetensors", to_bytes(weights, metadata={"format": "pt"}))


def save_training(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    step: int,
) -> None:
    """Write the state from which training can resume as if it had not stopped.

    It includes torch's global random state, from which dropout draws. All workers must call this,
    and the first one writes; any number of workers can resume from the file.

    Args:
        folder: Created if it does not exist.
        model: After `step` updates. May be compiled, or distributed over workers.
        optimizer: After as many updates.
        generator: Draws the batches.
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
    """Restore a model, its optimizer and the random states from what `save_training` wrote.

    Args:
        folder: The one given to `save_training`.
        model: Has the same configuration; its weights are overwritten.
        optimizer: Made for this model in the same way as the one that was saved.
        generator: Will draw the batches.

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
    # A worker without a saved state keeps the seed that its caller set.
    if (before := parts["random"].get(f"cpu.{rank()}")) is not None:
        torch.set_rng_state(before)
    for name, gpu in _gpus():
        if (before := parts["random"].get(f"{name}.{rank()}")) is not None:
            gpu.set_rng_state(before)
    return int(metadata["step"])


def _read_config(path: Path) -> dict[str, Any]:
    record = _read_json(path)
    for name in ("format", "model", "config", "tokenizers", "notes"):
        if name not in record:
            raise ValueError(f"config.json needs the field {name}, which {path} lacks")
    if record["format"] != FORMAT:
        raise ValueError(f"config.json must have format {FORMAT}, got {record['format']} in {path}")
    if record["model"] not in _CONFIGS:
        raise ValueError(
            f"model must be one of {', '.join(_CONFIGS)}, got {record['model']} in {path}"
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
    """Read weights from one file, or from several that an index lists."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        pickles = sorted(folder.glob("*.bin"))
        if pickles and not (folder / "model.safetensors").exists():
            raise ValueError(
                "weights must be in model.safetensors, because reading a pickle can run any code, "
                f"got only {pickles[0].name} in {folder}"
            )
        return _read(folder / "model.safetensors")[0]
    file_of = _read_json(index, "a model").get("weight_map")
    if not isinstance(file_of, dict):
        raise ValueError(f"{index.name} needs the field weight_map, which {index} lacks")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(file_of.values())):
        if Path(name).name != name:
            raise ValueError(f"weights must be in the folder of their index, got {name} in {index}")
        weights |= _read(folder / name)[0]
    for name in sorted(file_of.keys() ^ weights.keys()):
        raise ValueError(f"weights must be those that their index lists, got {name} and {index}")
    return weights


def _blank(model_class: Callable[[Any], Model], config: Any) -> Model:
    """Make a model whose weights will be overwritten, without changing torch's random state."""
    with torch.random.fork_rng(devices=[]):
        return model_class(config)


def _random_states(generator: torch.Generator) -> dict[str, Tensor]:
    states = {"generator": generator.get_state()}
    for number, state in enumerate(collected(torch.get_rng_state())):
        states[f"cpu.{number}"] = state
    for name, gpu in _gpus():
        for number, state in enumerate(collected(gpu.get_rng_state())):
            states[f"{name}.{number}"] = state
    return states


def _gpus() -> list[tuple[str, ModuleType]]:
    """Return torch's modules of the kinds of GPU that are here, which keep a random state each."""
    kinds = (("cuda", torch.cuda), ("mps", torch.mps))
    return [(name, gpu) for name, gpu in kinds if gpu.is_available()]


def _averages(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], path: Path
) -> dict[int, dict[str, Tensor]]:
    """Group an optimizer's state by parameter; each worker takes its own slice."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, average = name.partition(".")
        own = parameters[int(index)] if int(index) < len(parameters) else None
        if own is None or (tensor.ndim and tensor.shape != own.shape):
            raise ValueError(f"state must be that of this optimizer, got {name} in {path}")
        # A count of updates is a single number, which is not sliced.
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
        raise ValueError(f"a safetensors file must be complete, got {path}: {error}") from None


def _write(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it atomically."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
