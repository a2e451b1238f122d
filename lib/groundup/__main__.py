"""The command line: `groundup train`, `groundup generate`, `groundup evaluate`.

The only place that prints, chooses a device, or knows file names.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
from tqdm import tqdm

from groundup import checkpoint, sampling
from groundup.baselines import CharacterNGram
from groundup.config import DecoderOnlyConfig, EncoderDecoderConfig
from groundup.data import (
    Batch,
    Dates,
    covering_windows,
    language_model_batches,
    pair_batches,
    python_reference,
    python_source,
    text_file,
)
from groundup.generation import Choose, stream, translate_texts
from groundup.models import DecoderOnly, EncoderDecoder
from groundup.tokenizers import CharacterTokenizer
from groundup.training import TrainingConfig, adamw, bits_per_byte, evaluate, train

TEXTS = {"python-reference": python_reference, "python-source": python_source}
"""Texts that need no file of the user's."""
NAMED_DATA = ("dates", *TEXTS)
"""What `--data` may name; anything else is the path of a text file."""
RECORD_EVERY = 10
"""Updates between two lines of the log."""
SMALL_MODEL = 2_000_000
"""Parameters below which one processor thread is at least nearly as fast as two."""
SAVE_EVERY = 500
"""Updates between two checkpoints: the most that a crash can cost."""

Tokenizers = dict[str, CharacterTokenizer]
Settings = dict[str, Any]
"""How a model was begun, as `config.json` notes it; `--resume` holds on to it."""


class Recipe(NamedTuple):
    """Settings that suit the tiny preset; each can be overridden."""

    steps: int
    batch_size: int
    context: int
    learning_rate: float


class TextTask:
    """Continue a text."""

    RECIPE = Recipe(steps=2300, batch_size=4, context=128, learning_rate=2e-3)

    def __init__(self, data: str, tokenizers: Tokenizers | None = None):
        self.data = TEXTS[data]() if data in TEXTS else text_file(data)
        self.name = self.data.name
        whole = self.data.train + self.data.validation
        self.fingerprint = hashlib.sha256(whole.encode()).hexdigest()
        # The alphabet is that of the whole text; what follows what is learned from the first part.
        self.tokenizers = tokenizers or {"text": CharacterTokenizer.fit(whole)}

    def new_model(self, preset: str, context: int, generator: torch.Generator) -> DecoderOnly:
        """Make a model of a preset for this text."""
        vocab_size = self.tokenizers["text"].vocab_size
        config = DecoderOnlyConfig.preset(preset, vocab_size=vocab_size, max_len=context)
        return DecoderOnly(config, generator)

    def batches(self, batch_size: int, context: int, generator: torch.Generator) -> Iterator[Batch]:
        """Cut batches out of the part to learn from."""
        tokens = torch.tensor(self.tokenizers["text"].encode(self.data.train))
        return language_model_batches(tokens, batch_size, context, generator)

    def evaluate(self, model: DecoderOnly | EncoderDecoder) -> dict[str, Any]:
        """Measure on the part held out: all of it but its first character."""
        assert isinstance(model, DecoderOnly)
        text = self.data.validation
        tokens = torch.tensor(self.tokenizers["text"].encode(text))
        windows = covering_windows(tokens, batch_size=64, length=model.config.max_len)
        nats, num_tokens = evaluate(model, windows)
        return {
            "bits_per_byte": bits_per_byte(nats, num_tokens, len(text[1:].encode())),
            "nats_per_token": nats,
            "num_tokens": num_tokens,
            "num_bytes": len(text[1:].encode()),
        }

    def baseline(self) -> dict[str, Any]:
        """Measure the 5-gram on the same characters, learned from the same part."""
        text = self.data.validation
        ngram = CharacterNGram(self.data.train, self.tokenizers["text"].characters, order=5)
        num_bytes = len(text[1:].encode())
        return {
            "name": "5-gram characters, interpolated modified Kneser-Ney",
            "bits_per_byte": ngram.bits_per_character(text) * (len(text) - 1) / num_bytes,
        }


class DatesTask:
    """Read a date as people write it, and write it in ISO form."""

    RECIPE = Recipe(steps=1000, batch_size=64, context=64, learning_rate=3e-3)
    TARGET_LEN = len("2031-05-03") + 1  # and the token that begins or ends it
    NUM_VALIDATION = 2000

    def __init__(self, data: str, tokenizers: Tokenizers | None = None):
        self.data = Dates()
        self.name = self.data.name
        self.fingerprint = self.name
        if tokenizers is None:
            source, target = self.data.tokenizers()
            tokenizers = {"source": source, "target": target}
        self.tokenizers = tokenizers

    def new_model(self, preset: str, context: int, generator: torch.Generator) -> EncoderDecoder:
        """Make a model of a preset for dates."""
        config = EncoderDecoderConfig.preset(
            preset,
            source_vocab_size=self.tokenizers["source"].vocab_size,
            vocab_size=self.tokenizers["target"].vocab_size,
            source_max_len=context,
            max_len=self.TARGET_LEN,
        )
        return EncoderDecoder(config, generator)

    def batches(self, batch_size: int, context: int, generator: torch.Generator) -> Iterator[Batch]:
        """Write batches of days to learn from, always new ones."""
        source, target = self.tokenizers["source"], self.tokenizers["target"]
        while True:
            pairs = self.data.draw(batch_size, generator, self.data.train_days)
            yield from pair_batches(pairs, batch_size, source, target)

    def evaluate(self, model: DecoderOnly | EncoderDecoder) -> dict[str, Any]:
        """Measure on days held out."""
        assert isinstance(model, EncoderDecoder)
        source, target = self.tokenizers["source"], self.tokenizers["target"]
        generator = torch.Generator().manual_seed(0)
        pairs = self.data.draw(self.NUM_VALIDATION, generator, self.data.validation_days)
        nats, num_tokens = evaluate(model, pair_batches(pairs, 256, source, target))
        answers = translate_texts(model, [pair.source for pair in pairs], source, target)
        right = sum(a == pair.target for a, pair in zip(answers, pairs, strict=True))
        return {
            "exact_match": right / len(pairs),
            "nats_per_token": nats,
            "num_tokens": num_tokens,
            "num_examples": len(pairs),
        }

    def baseline(self) -> dict[str, Any]:
        """Refuse: counts cannot translate."""
        raise ValueError("--baseline must be used with a model of text, got one of dates")


Task = TextTask | DatesTask


def _task(data: str, tokenizers: Tokenizers | None = None) -> Task:
    return (DatesTask if data == "dates" else TextTask)(data, tokenizers)


def train_command(args: argparse.Namespace) -> int:
    """Train a model, or go on training one."""
    if args.data is not None and args.data not in NAMED_DATA:
        args.data = os.path.abspath(args.data)
    device = _device(args.device)
    task, model, settings = _resumed(args) if args.resume else _begun(args)
    _use_threads(args.threads, model)
    config = TrainingConfig(**settings["training"])
    torch.manual_seed(settings["seed"])  # dropout draws from the global state
    generator = torch.Generator().manual_seed(settings["seed"])
    optimizer = adamw(model.to(device), config)
    start = 0
    if args.resume:
        start = checkpoint.load_training(args.out, model, optimizer, generator)
        if start >= config.steps:
            raise ValueError(
                "--steps must be more than the updates made so far, "
                f"got steps={config.steps} after {start}"
            )

    def save(step: int) -> None:
        checkpoint.save_training(args.out, model, optimizer, generator, step)
        checkpoint.save(args.out, model, task.tokenizers, settings | {"step": step})

    batches = task.batches(settings["batch_size"], settings["context"], generator)
    save(start)  # a folder that cannot be written fails before the work, not after it
    step = start
    with (
        _stop_signals() as received,
        _log(Path(args.out) / "log.jsonl", start) as log,
        tqdm(total=config.steps, initial=start, unit=" steps", dynamic_ncols=True) as bar,
    ):
        for record in train(model, batches, optimizer, config, start, RECORD_EVERY):
            bar.update(record.step - step)
            bar.set_postfix_str(f"loss {record.loss:.3f} nats per token")
            step = record.step
            print(json.dumps(asdict(record)), file=log, flush=True)
            if received or (args.seconds is not None and record.seconds >= args.seconds):
                break
            if step % SAVE_EVERY == 0:
                save(step)
    save(step)
    print(f"made {step} of {config.steps} updates, saved in {args.out}")
    if step < config.steps:
        print(f"go on with: groundup train --resume --out {args.out}")
    if received:
        return 128 + received[0]
    for name, value in task.evaluate(model).items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    return 0


def _begun(args: argparse.Namespace) -> tuple[Task, DecoderOnly | EncoderDecoder, Settings]:
    if args.data is None:
        raise ValueError(f"--data must be given: {', '.join(NAMED_DATA)} or a text file")
    if (Path(args.out) / "config.json").exists() and not args.overwrite:
        raise ValueError(
            f"--out must not hold a model yet, got {args.out}; --resume goes on with that model, "
            "--overwrite replaces it"
        )
    task = _task(args.data)
    recipe = task.RECIPE
    settings = {
        "data": args.data,
        "data_name": task.name,
        "fingerprint": task.fingerprint,
        "preset": args.preset or "tiny",
        "seed": args.seed or 0,
        "batch_size": args.batch_size or recipe.batch_size,
        "context": args.context or recipe.context,
        "training": asdict(
            TrainingConfig(
                steps=args.steps or recipe.steps,
                learning_rate=args.learning_rate or recipe.learning_rate,
            )
        ),
    }
    generator = torch.Generator().manual_seed(settings["seed"])
    return task, task.new_model(settings["preset"], settings["context"], generator), settings


def _resumed(args: argparse.Namespace) -> tuple[Task, DecoderOnly | EncoderDecoder, Settings]:
    saved = checkpoint.load(args.out)
    settings = saved.notes
    begun = settings | settings["training"]
    for name in ("data", "preset", "seed", "batch_size", "context", "learning_rate"):
        given = getattr(args, name)
        if given is not None and given != begun[name]:
            raise ValueError(
                f"--{name.replace('_', '-')} must be what the model was begun with, "
                f"got {given} instead of {begun[name]}"
            )
    task = _task(settings["data"], saved.tokenizers)
    if task.fingerprint != settings["fingerprint"]:
        raise ValueError(
            f"training must go on with the data it began with, {settings['data_name']}, "
            f"got another content, {task.name}"
        )
    if args.steps is not None:
        settings["training"]["steps"] = args.steps
    return task, saved.model, settings


def evaluate_command(args: argparse.Namespace) -> int:
    """Measure a model on what was held out."""
    saved = checkpoint.load(args.folder, _device(args.device))
    _use_threads(args.threads, saved.model)
    task = _task(saved.notes["data"], saved.tokenizers)
    if task.fingerprint != saved.notes["fingerprint"]:
        print(
            f"groundup: the model learned from {saved.notes['data_name']} and is measured on "
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


def generate_command(args: argparse.Namespace) -> int:
    """Let a model write."""
    device = _device(args.device)
    saved = checkpoint.load(args.folder, device)
    _use_threads(args.threads, saved.model)
    if isinstance(saved.model, EncoderDecoder):
        sources = args.prompt or [line.strip() for line in _standard_input() if line.strip()]
        source, target = saved.tokenizers["source"], saved.tokenizers["target"]
        for answer in translate_texts(saved.model, sources, source, target):
            print(answer)
        return 0
    tokenizer = saved.tokenizers["text"]
    choose = _chooser(args, device)
    for prompt in args.prompt or ["".join(_standard_input()).rstrip("\n")]:
        tokens = torch.tensor([tokenizer.encode(prompt)], dtype=torch.long, device=device)
        print(prompt, end="", flush=True)
        for token in islice(stream(saved.model, tokens, choose), args.length):
            print(tokenizer.decode(token.tolist()), end="", flush=True)
        print()
    return 0


def _chooser(args: argparse.Namespace, device: torch.device) -> Choose:
    if args.greedy:
        return sampling.greedy
    generator = torch.Generator(device).manual_seed(args.seed)

    def choose(logits: torch.Tensor) -> torch.Tensor:
        logits = sampling.temperature(logits, args.temperature)
        if args.top_k is not None:
            logits = sampling.top_k(logits, args.top_k)
        return sampling.sample(sampling.top_p(logits, args.top_p), generator)

    return choose


def _standard_input() -> list[str]:
    if sys.stdin.isatty():
        raise ValueError("--prompt must be given, or text piped in")
    return sys.stdin.readlines()


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda needs a GPU that torch can use, got none")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _use_threads(number: int | None, model: torch.nn.Module) -> None:
    """Choose how many processor threads share one operation.

    The operations of a small model are over before a second thread has begun, and threads that
    wait for each other can lose a hundred times what they gain while another program is running.
    """
    if number is None and sum(p.numel() for p in model.parameters()) < SMALL_MODEL:
        number = 1
    if number is not None:
        torch.set_num_threads(number)


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collect signals to stop, so that the update under way is finished and saved.

    A second one stops at once.
    """
    received: list[int] = []

    def remember(number: int, _frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _log(path: Path, step: int) -> TextIO:
    """Open the log of records for appending, without those of updates that were lost."""
    kept = []
    if step > 0 and path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["step"] <= step]
    path.write_text("".join(kept), encoding="utf-8")
    return path.open("a", encoding="utf-8")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="groundup", description="Train a transformer, measure it, let it write."
    )
    commands = parser.add_subparsers(required=True, metavar="train|evaluate|generate")

    command = commands.add_parser("train", help="train a model, or go on training one")
    command.set_defaults(run=train_command)
    command.add_argument(
        "--data", help=f"{', '.join(NAMED_DATA)}, or the path of a text file in UTF-8"
    )
    command.add_argument("--out", required=True, help="folder for the model and its log")
    command.add_argument("--preset", help="size of the model (default: tiny)")
    command.add_argument("--steps", type=_positive, help="updates in all (default: by data)")
    command.add_argument("--seconds", type=float, help="stop early after this long")
    command.add_argument("--batch-size", type=_positive, help="sequences per update")
    command.add_argument("--context", type=_positive, help="longest text read at once, in tokens")
    command.add_argument("--learning-rate", type=float, help="highest learning rate")
    command.add_argument("--seed", type=int, help="decides weights and batches (default: 0)")
    start = command.add_mutually_exclusive_group()
    start.add_argument("--resume", action="store_true", help="go on where --out left off")
    start.add_argument("--overwrite", action="store_true", help="replace the model in --out")

    command = commands.add_parser("evaluate", help="measure a model on what was held out")
    command.set_defaults(run=evaluate_command)
    command.add_argument("folder", help="what `train` was given as --out")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument(
        "--baseline", action="store_true", help="measure a 5-gram of characters as well"
    )

    command = commands.add_parser("generate", help="let a model write")
    command.set_defaults(run=generate_command)
    command.add_argument("folder", help="what `train` was given as --out")
    command.add_argument(
        "--prompt", nargs="+", help="texts to continue or dates to read (default: standard input)"
    )
    command.add_argument("--length", type=_positive, default=400, help="tokens to write")
    command.add_argument("--temperature", type=float, default=0.8, help="below 1 is safer")
    command.add_argument("--top-k", type=int, help="choose among this many tokens")
    command.add_argument("--top-p", type=float, default=1.0, help="choose among this share")
    command.add_argument("--greedy", action="store_true", help="always the most probable token")
    command.add_argument("--seed", type=int, default=0, help="decides what is drawn")

    for command in commands.choices.values():
        command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
        command.add_argument(
            "--threads", type=_positive, help="processor threads (default: 1 for a small model)"
        )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Without the name of the program; by default those it was started with.

    Returns:
        Exit status: 0 when all went well, 2 when the user has to change something.

    """
    args = _parser().parse_args(arguments)
    try:
        return args.run(args)
    except (ValueError, OSError) as error:
        print(f"groundup: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
