"""The commands: they choose devices, print and handle signals; the functions they call do not."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from itertools import chain, islice, takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import torch
from tqdm import tqdm

from groundup import presets
from groundup.core.models import AnyModel, DecoderOnly, EncoderDecoder
from groundup.data.batches import Batch, shard
from groundup.files import checkpoint
from groundup.generation import sampling
from groundup.generation.loop import stream, translate_texts
from groundup.looking import accounting
from groundup.looking.throughput import Throughput, machine, measure_decoding, measure_training
from groundup.own_parts import at_work
from groundup.own_parts.assembled import count_calls, load_library, rebuilt
from groundup.own_parts.training_parts import loss_by, train_by
from groundup.training import distributed
from groundup.training.distributed import WorkerLostError
from groundup.training.loop import TrainingConfig, optimizers_for
from groundup.training.loop import train as train_model
from groundup.training.setup import Setup, choose_setup, recompute, set_up
from groundup.training.tasks import TEXTS, DatesTask, Task, TextTask, recall_task

NAMED_DATA = ("dates", *TEXTS)
"""What `--data` may name; anything else is the path of a text file."""
RECORD_EVERY = 10
"""Updates between two lines of the log."""
SMALL_MODEL = 2_000_000
"""Number of parameters below which one CPU thread is about as fast as two, or faster."""
SAVE_EVERY = 500
"""Updates between two checkpoints: the most that a crash can lose."""

Settings = dict[str, Any]
"""Settings of a run, which `config.json` stores and `--resume` keeps."""


def is_worker() -> bool:
    """Return whether torchrun started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def train(args: argparse.Namespace) -> int:
    """Start or resume training; if torchrun started this process, as one of its workers."""
    library = _library_to_train(args)
    if args.data is not None and args.data not in NAMED_DATA:
        if not os.path.exists(args.data):
            known = ", ".join(NAMED_DATA)
            raise ValueError(f"--data must be {known} or a text file, got {args.data}")
        args.data = os.path.abspath(args.data)
    if args.parallel is not None and not is_worker():
        raise ValueError(
            f"--parallel {args.parallel} needs several processes, got one: start them with "
            "torchrun --nproc_per_node 2 -m groundup train ..."
        )
    device = _device(args.device)
    task, model, settings = _resumed(args) if args.resume else _started(args)
    settings.pop("library", None)
    if library is not None:
        model = rebuilt(model, library)
        settings["library"] = library.__name__
        # The faster setups are only made for the library's own code.
        args.precision = args.precision or "float32"
        args.compile = args.compile or "off"
        args.attention = args.attention or "explicit"
    _require_rows(settings)
    _use_threads(args.threads, model)
    if os.environ.get("RANK", "0") == "0":  # one of several workers measures
        settings = _with_setup(args, task, model.to(device), settings)
    if not is_worker():
        return _train(args, device, task, model, settings)
    try:
        # When a worker is lost, torchrun stops the others; they first report what happened.
        with _stop_signals(may_insist=False), distributed.join(device):
            return _train(args, device, task, model, distributed.shared(settings))
    except WorkerLostError as error:
        raise WorkerLostError(f"{error}; resume with: {_resume_command(args)}") from error


def _train(
    args: argparse.Namespace,
    device: torch.device,
    task: Task,
    model: AnyModel,
    settings: Settings,
) -> int:
    is_first = distributed.rank() == 0
    model.to(device)
    config = TrainingConfig(**settings["training"])
    setup = Setup(precision=config.precision, **settings["setup"])
    if args.recompute:
        recompute(model)
    # Dropout draws from the global state; each worker has its own rows, so its own seed.
    torch.manual_seed(settings["seed"] + distributed.rank())
    generator = torch.Generator().manual_seed(settings["seed"])
    trained, model = _spread(args, task, model, settings)
    optimizer = optimizers_for(trained, config)
    start = 0
    if args.resume:
        start = checkpoint.load_training(args.out, trained, optimizer, generator)
        if start >= config.steps:
            raise ValueError(
                "--steps must exceed the number of updates made so far, "
                f"got steps={config.steps} after {start}"
            )
    # A student's functions cannot update the slices of weights that a worker of FSDP holds.
    library, loss = None if args.library is None else load_library(args.library), None
    if library is not None and args.parallel != "fsdp":
        optimizer, config, _ = train_by(vars(library), optimizer, config, start)
        loss = loss_by(vars(library))

    def save(step: int) -> None:
        checkpoint.save_training(args.out, trained, optimizer, generator, step)
        if args.parallel == "fsdp":
            distributed.copy_whole(trained, model)
        if is_first:
            checkpoint.save(args.out, model, task.tokenizers, settings | {"step": step})

    batches = task.batches(settings["batch_size"], settings["context"], generator)
    batches = shard(batches, distributed.rank(), distributed.num_workers())
    save(start)  # if the folder cannot be written, fail before training rather than after it
    step = start
    with (
        _stop_signals(may_insist=not is_worker()) as received,
        _log(Path(args.out) / "log.jsonl", start) if is_first else nullcontext() as log,
        tqdm(
            total=config.steps,
            initial=start,
            unit=" steps",
            dynamic_ncols=True,
            disable=not is_first,
        ) as bar,
    ):
        forward = set_up(trained, setup)
        how = (optimizer, config, start, RECORD_EVERY, loss)
        for record in train_model(forward, batches, *how):
            bar.update(record.step - step)
            bar.set_postfix_str(f"loss {record.loss:.3f} nats per token")
            step = record.step
            if log is not None:
                print(json.dumps(asdict(record)), file=log, flush=True)
            is_late = args.seconds is not None and record.seconds >= args.seconds
            # Workers have different clocks, but must stop at the same update.
            if distributed.total(torch.tensor(bool(received) or is_late, dtype=torch.int)) > 0:
                break
            if step % SAVE_EVERY == 0:
                save(step)
    save(step)
    if is_first:
        print(f"made {step} of {config.steps} updates, saved in {args.out}")
        if step < config.steps:
            print(f"resume with: {_resume_command(args)}")
    if received:
        return 128 + received[0]
    if is_first:
        for name, value in task.evaluate(model.to(device)).items():
            print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
        if library is not None:
            _show(library, task, model, Path(args.out))
    return 0


def _library_to_train(args: argparse.Namespace) -> ModuleType | None:
    """Load the library that `--library` names, and choose for it what was not chosen."""
    if args.library is None:
        if args.out is None:
            raise ValueError("--out must be given: a folder for the model and its log")
        return None
    library = load_library(args.library)
    count_calls(library)
    if getattr(library, "YOURS", None) == []:
        raise ValueError(
            f"--library must hold a function of yours, got {args.library}, where all are borrowed: "
            "solve an exercise that `classroom mine` lists, then run it again"
        )
    chosen = {"out": os.path.join("runs", library.__name__)}
    if not args.resume:
        # Few of the pieces that exercises ask for are in a model of the preset `modern`.
        chosen |= {"data": "python-reference", "preset": "tiny"}
    chosen = {name: value for name, value in chosen.items() if getattr(args, name) is None}
    vars(args).update(chosen)
    if os.environ.get("RANK", "0") == "0":
        if chosen:
            print("chose", " ".join(f"{_option(name)} {value}" for name, value in chosen.items()))
        for line in at_work.borrowed(library):
            print(line)
    return library


def _show(library: ModuleType, task: Task, model: AnyModel, out: Path) -> None:
    """Print which pieces of a library ran and what they generate, and save a picture of it."""
    sample = at_work.write_both(model, library, dict(task.tokenizers), at_work.prompts_for(task))
    records = map(json.loads, (out / "log.jsonl").read_text(encoding="utf-8").splitlines())
    losses = [(record["step"], record["loss"]) for record in records]
    print(*at_work.counted(library), "", sample.theirs, "", sample.verdict, sep="\n")
    at_work.draw(library, losses, sample).savefig(out / at_work.PICTURE, dpi=150)
    print(f"saved a picture of this: {out / at_work.PICTURE}")


def _resume_command(args: argparse.Namespace) -> str:
    workers = int(os.environ.get("WORLD_SIZE", 1))
    start = "groundup" if workers == 1 else f"torchrun --nproc_per_node {workers} -m groundup"
    parallel = "" if args.parallel is None else f" --parallel {args.parallel}"
    library = "" if args.library is None else f" --library {args.library}"
    return f"{start} train --resume --out {args.out}{parallel}{library}"


def _in_library(args: argparse.Namespace, model: AnyModel) -> AnyModel:
    """Return the model, rebuilt with the library that `--library` names."""
    if args.library is None:
        return model
    return rebuilt(model, load_library(args.library))


def _started(args: argparse.Namespace) -> tuple[Task, AnyModel, Settings]:
    if args.data is None:
        raise ValueError(f"--data must be given: {', '.join(NAMED_DATA)} or a text file")
    if (Path(args.out) / "config.json").exists() and not args.overwrite:
        raise ValueError(
            f"--out must not hold a model yet, got {args.out}; --resume continues its training, "
            "--overwrite replaces it"
        )
    task = _new_task(args)
    preset = args.preset or task.PRESET
    recipe = task.RECIPES.get(preset, task.RECIPES["tiny"])
    asked = {
        "steps": args.steps,
        "learning_rate": args.learning_rate,
        "optimizer": args.optimizer,
        "schedule": args.schedule,
        "label_smoothing": args.label_smoothing,
        "micro_batches": args.accumulate,
        "muon_learning_rate": args.muon_learning_rate,
    }
    config = replace(recipe.training, **{k: v for k, v in asked.items() if v is not None})
    if args.muon_learning_rate is not None and config.optimizer != "muon":
        raise ValueError(
            "--muon-learning-rate must be used with --optimizer muon, "
            f"got --optimizer {config.optimizer}"
        )
    settings = {
        "data": args.data,
        "data_name": task.name,
        "fingerprint": task.fingerprint,
        "tokenizer": args.tokenizer or ("character" if isinstance(task, TextTask) else None),
        "vocab_size": args.vocab_size,
        "preset": preset,
        "seed": args.seed or 0,
        "batch_size": args.batch_size or recipe.batch_size,
        "context": args.context or recipe.context,
        "training": asdict(config),
    }
    generator = torch.Generator().manual_seed(settings["seed"])
    if args.set:
        settings["set"] = dict(args.set)
    model = task.new_model(preset, settings["context"], generator, settings.get("set"))
    return task, model, settings


def _new_task(args: argparse.Namespace) -> Task:
    if args.data != "dates":
        return TextTask(args.data, None, args.tokenizer or "character", args.vocab_size)
    for name in ("tokenizer", "vocab_size"):
        if getattr(args, name) is not None:
            raise ValueError(
                f"{_option(name)} must be used with a text, got --data dates, whose tokens are "
                "characters"
            )
    return DatesTask()


def _resumed(args: argparse.Namespace) -> tuple[Task, AnyModel, Settings]:
    saved = checkpoint.load(args.out)
    settings = saved.notes
    before = settings | settings["training"]
    before["accumulate"] = settings["training"].get("micro_batches")
    args.set = dict(args.set) if args.set else None
    for name in (
        *("data", "tokenizer", "vocab_size", "preset", "set", "context", "seed"),
        *("batch_size", "accumulate", "learning_rate", "optimizer", "muon_learning_rate"),
        *("schedule", "label_smoothing"),
    ):
        given = getattr(args, name)
        if given is not None and given != before.get(name):
            raise ValueError(
                f"{_option(name)} must be what the run was started with, "
                f"got {given} instead of {before.get(name)}"
            )
    task = recall_task(settings["data"], saved.tokenizers)
    if task.fingerprint != settings["fingerprint"]:
        raise ValueError(
            f"training must resume with the data it started with, {settings['data_name']}, "
            f"got different data, {task.name}"
        )
    if args.steps is not None:
        settings["training"]["steps"] = args.steps
    return task, saved.model, settings


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _with_setup(
    args: argparse.Namespace, task: Task, model: AnyModel, settings: Settings
) -> Settings:
    """Choose how to compute: as requested, else as before, else what is fastest on this machine.

    The best setup depends on the machine, so a run may resume with another one; its rounding errors
    then differ.
    """
    compiled = {"on": True, "off": False}.get(args.compile, args.compile)
    asked = {"precision": args.precision, "compiled": compiled, "attention": args.attention}
    before: dict[str, Any] = dict.fromkeys(asked, "auto")
    if "setup" in settings:
        if set(asked.values()) == {None}:
            return settings
        before = settings["setup"] | {"precision": settings["training"]["precision"]}
    wanted = {name: before[name] if value is None else value for name, value in asked.items()}
    generator = torch.Generator().manual_seed(settings["seed"])
    batches = task.batches(settings["batch_size"], settings["context"], generator)
    config = TrainingConfig(**settings["training"])
    setup = choose_setup(model, next(batches), config, **wanted)
    if setup.milliseconds:
        times = ", ".join(f"{name} {ms:.3g} ms" for name, ms in setup.milliseconds.items())
        print(f"chose {setup.name}; measured per update: {times}")
    chosen = asdict(setup)
    training = settings["training"] | {"precision": chosen.pop("precision")}
    return settings | {"training": training, "setup": chosen}


def _require_rows(settings: Settings) -> None:
    workers = int(os.environ["WORLD_SIZE"]) if is_worker() else 1
    rows, rest = divmod(settings["batch_size"], workers)
    accumulate = settings["training"]["micro_batches"]
    if rest or rows < accumulate:
        raise ValueError(
            "--batch-size must be a multiple of the number of workers, with at least --accumulate "
            f"sequences for each, got batch_size={settings['batch_size']}, workers={workers}, "
            f"accumulate={accumulate}"
        )


def _spread(
    args: argparse.Namespace, task: Task, model: AnyModel, settings: Settings
) -> tuple[torch.nn.Module, AnyModel]:
    """Return the model to train, and the model to save and evaluate.

    They are the same, except with FSDP: each worker then holds slices, which are copied into a
    whole model.
    """
    if not is_worker():
        return model, model
    if args.parallel != "fsdp":
        return distributed.parallelise(model, "ddp"), model
    whole = model
    if distributed.rank() == 0:
        generator = torch.Generator().manual_seed(settings["seed"])
        changes = settings.get("set")
        whole = task.new_model(settings["preset"], settings["context"], generator, changes)
        whole = _in_library(args, whole)
    return distributed.parallelise(model, "fsdp"), whole


def evaluate(args: argparse.Namespace) -> int:
    """Evaluate a model on held-out data."""
    saved = checkpoint.load(args.folder, _device(args.device))
    saved.model = _in_library(args, saved.model)
    _use_threads(args.threads, saved.model)
    if "data" not in saved.notes:
        raise ValueError(
            "evaluate needs a model made by `train`, which records its data, got an imported one: "
            f"{args.folder}"
        )
    task = recall_task(saved.notes["data"], saved.tokenizers)
    if task.fingerprint != saved.notes["fingerprint"]:
        print(
            f"groundup: the model was trained on {saved.notes['data_name']} and is evaluated on "
            f"{task.name}, whose held-out part it may have seen",
            file=sys.stderr,
        )
    results = {"data": task.name, "step": saved.notes["step"]} | task.evaluate(saved.model)
    if args.baseline:
        results["baseline"] = task.baseline()
    if args.json:
        print(json.dumps(results, ensure_ascii=False))
        return 0
    baseline = results.pop("baseline", {})
    results |= {f"baseline {name}": value for name, value in baseline.items()}
    for name, value in results.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    return 0


def generate(args: argparse.Namespace) -> int:
    """Generate text with a model."""
    device = _device(args.device)
    saved = checkpoint.load(args.folder, device)
    saved.model = _in_library(args, saved.model)
    _use_threads(args.threads, saved.model)
    if isinstance(saved.model, EncoderDecoder):
        sources = args.prompt or [line.strip() for line in _standard_input() if line.strip()]
        source, target = saved.tokenizers["source"], saved.tokenizers["target"]
        for answer in translate_texts(saved.model, sources, source, target):
            print(answer)
        return 0
    assert isinstance(saved.model, DecoderOnly)
    tokenizer, ends = saved.tokenizers["text"], saved.notes.get("ends", [])
    choose = sampling.greedy
    if not args.greedy:
        library = None if args.library is None else load_library(args.library)
        generator = torch.Generator(device).manual_seed(args.seed)
        settings = (args.temperature, args.top_k, args.top_p)
        choose = at_work.chooser(library, generator, *settings)
    for prompt in args.prompt or ["".join(_standard_input()).rstrip("\n")]:
        ids = [*saved.notes.get("prompt_start", []), *tokenizer.encode(prompt)]
        tokens = torch.tensor([ids], dtype=torch.long, device=device)
        generated = map(int, islice(stream(saved.model, tokens, choose), args.length))
        generated = takewhile(lambda token: token not in ends, generated)
        # Decoded with the prompt: how a token is written may depend on the token before it.
        for text in tokenizer.decode_stream(chain(ids, generated)):
            print(text, end="", flush=True)
        print()
    return 0


def import_model(args: argparse.Namespace) -> int:
    """Import a published model, so that the other commands can use it."""
    out = Path(args.out)
    if (out / "config.json").exists() and not args.overwrite:
        raise ValueError(f"--out must not hold a model yet, got {out}; --overwrite replaces it")
    saved = checkpoint.from_published(args.folder)
    checkpoint.save(out, saved.model, saved.tokenizers, saved.notes)
    print(
        f"{sum(p.numel() for p in saved.model.parameters()):,} parameters, "
        f"{saved.model.config.num_layers} blocks, {saved.tokenizers['text'].vocab_size:,} tokens; "
        f'next: groundup generate {out} --prompt "Once upon a time"'
    )
    return 0


def bench(args: argparse.Namespace) -> int:
    """Measure how fast a preset trains and generates on this machine."""
    device = _device(args.device)
    sizes = {"vocab_size": args.vocab_size, "max_len": args.context, "dropout": 0.0}
    config = presets.decoder_only(args.preset, **sizes)
    generator = torch.Generator().manual_seed(0)
    model = DecoderOnly(config, generator).to(device)
    _use_threads(args.threads, model)
    shape = (args.batch_size, args.context + 1)
    tokens = torch.randint(args.vocab_size, shape, generator=generator)
    batch = Batch({"tokens": tokens[:, :-1]}, tokens[:, 1:]).to(device)
    # So many steps that measuring every setup, including compiled ones, is worthwhile.
    training = TrainingConfig(steps=10**6, learning_rate=1e-4, optimizer=args.optimizer)
    compiled = {"on": True, "off": False}.get(args.compile, args.compile)
    choices = {"precision": args.precision, "compiled": compiled, "attention": args.attention}
    setup = choose_setup(model, batch, training, **choices)
    forward = set_up(model, setup)
    optimizer = optimizers_for(model, training)
    learned = measure_training(
        forward, batch, optimizer, precision=setup.precision, seconds=args.seconds
    )
    prompt = batch.inputs["tokens"][:1, : max(1, args.context // 8)]
    new_tokens = min(128, args.context - prompt.shape[1])
    decoded = measure_decoding(model, prompt, new_tokens)
    about = machine(device)
    results = {
        "machine": about,
        "model": {
            "preset": args.preset,
            "parameters": sum(accounting.parameters(config).values()),
            "config": asdict(config),
        },
        "training": asdict(learned) | {"setup": asdict(setup), "shape": [*tokens[:, 1:].shape]},
        "decoding": asdict(decoded) | {"batch_size": 1, "new_tokens": new_tokens},
    }
    if args.json:
        print(json.dumps(results))
        return 0
    bfloat16 = "" if about["bfloat16"] else "no "
    print(
        f"machine   {about['device']}, {about['cores']} cores, {about['threads']} in use, "
        f"{bfloat16}bfloat16 instructions, torch {about['torch']}, load {about['load']}"
    )
    print(
        f"model     {args.preset}: {results['model']['parameters']:,} parameters, "
        f"{config.num_layers} layers, d_model {config.d_model}, vocab_size {config.vocab_size}"
    )
    print(
        f"training  {learned.tokens_per_second:,.0f} tokens/s, {_flops(learned)}, "
        f"{args.batch_size} x {args.context} tokens, {setup.name}, {args.optimizer}"
    )
    print(
        f"decoding  {decoded.tokens_per_second:,.0f} tokens/s, {_flops(decoded)}, "
        f"{_bandwidth(decoded)}, 1 sequence, {new_tokens} tokens, float32, eager"
    )
    return 0


def _flops(speed: Throughput) -> str:
    fraction = "MFU unknown" if speed.mfu is None else f"MFU {speed.mfu:.1%}"
    return f"{speed.flops_per_second / 1e9:,.1f} GFLOP/s ({fraction})"


def _bandwidth(speed: Throughput) -> str:
    assert speed.bytes_per_second is not None
    known = speed.bandwidth_fraction
    fraction = "" if known is None else f" ({known:.1%} of the memory bandwidth)"
    return f"{speed.bytes_per_second / 1e9:,.1f} GB/s{fraction}"


def _standard_input() -> list[str]:
    if sys.stdin.isatty():
        raise ValueError("--prompt must be given, or text piped to standard input")
    return sys.stdin.readlines()


def _device(name: str) -> torch.device:
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(name, True):
        raise ValueError(f"--device {name} needs a GPU that torch can use, got none")
    if name == "auto":
        name = next((gpu for gpu in there if there[gpu]), "cpu")
    if name == "mps" and is_worker():
        raise ValueError("workers must use --device cpu or cuda, got mps, which cannot join them")
    if name == "cuda" and is_worker():  # each worker on a machine has its own GPU
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        return torch.device(name, torch.cuda.current_device())
    return torch.device(name)


def _use_threads(number: int | None, model: torch.nn.Module) -> None:
    """Choose how many CPU threads share one operation.

    The operations of a small model end before a second thread has started. While another program is
    running, threads that wait for each other can lose a hundred times what they gain.
    """
    if number is None and sum(p.numel() for p in model.parameters()) < SMALL_MODEL:
        number = 1
    if number is not None:
        torch.set_num_threads(number)


@contextmanager
def _stop_signals(may_insist: bool) -> Iterator[list[int]]:
    """Collect signals to stop, so that the current update is finished and saved.

    If `may_insist`, a second signal stops at once. Workers ignore it, because torchrun forwards
    signals that the terminal has already sent to every process.
    """
    received: list[int] = []

    def receive(number: int, _frame: object) -> None:
        if received and may_insist:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _log(path: Path, step: int) -> TextIO:
    """Open the log for appending, after dropping the records of updates that were lost."""
    kept = []
    if step > 0 and path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["step"] <= step]
    path.write_text("".join(kept), encoding="utf-8")
    return path.open("a", encoding="utf-8")
