"""The command line: `groundup train`, `evaluate`, `generate` and `bench`.

What a command does stands in `commands`, which needs torch and is read when a command runs: help
and a misspelt option need neither.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

NAMED_DATA = ("dates", "python-reference", "python-source", "tiny-shakespeare")
"""What `--data` may name; anything else is the path of a text file."""


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text}")
    try:
        return name, json.loads(value)
    except ValueError:  # a word
        return name, value


def _add_library(command: argparse._ActionsContainer) -> None:
    command.add_argument(
        "--library",
        help="folder of a package, such as mine, which `classroom mine` makes: its DecoderOnly "
        "computes, its adamw_step, clip_gradients and learning_rate train, its with_temperature, "
        "top_k and top_p choose (default: groundup's own)",
    )


def _add_setup(command: argparse.ArgumentParser, default: str | None) -> argparse._ArgumentGroup:
    group = command.add_argument_group(
        "how to compute", "auto measures what is fastest on this machine, if the run is long"
    )
    for name, choices in (
        ("--precision", ("auto", "float32", "bfloat16")),
        ("--compile", ("auto", "on", "off")),
        ("--attention", ("auto", "explicit", "fused")),
    ):
        group.add_argument(name, choices=choices, default=default)
    return group


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="groundup", description="Train a transformer, measure it, let it write."
    )
    commands = parser.add_subparsers(
        required=True, dest="command", metavar="train|evaluate|generate|bench"
    )

    command = commands.add_parser(
        "train",
        help="train a model, or go on training one",
        description="Train a model, or go on training one. Several processes train one model "
        "together: torchrun --nproc_per_node 2 -m groundup train ...",
    )
    command.add_argument("--out", required=True, help="folder for the model and its log")
    start = command.add_mutually_exclusive_group()
    start.add_argument("--resume", action="store_true", help="go on where --out left off")
    start.add_argument("--overwrite", action="store_true", help="replace the model in --out")

    what = command.add_argument_group("what to learn")
    what.add_argument(
        "--data", help=f"{', '.join(NAMED_DATA)}, or the path of a text file in UTF-8"
    )
    what.add_argument(
        "--tokenizer",
        choices=("character", "byte", "bpe"),
        help="what a token of text is (default: character)",
    )
    what.add_argument("--vocab-size", type=_positive, help="tokens of bpe (default: 1024)")
    what.add_argument(
        "--preset", help="size and parts of the model (default: modern for text, tiny for dates)"
    )
    what.add_argument(
        "--set",
        type=_field,
        action="append",
        metavar="NAME=VALUE",
        help="change a field of the preset, such as num_heads=8 or bias=true; may be given often",
    )
    what.add_argument("--context", type=_positive, help="longest text read at once, in tokens")
    what.add_argument("--seed", type=int, help="decides weights and batches (default: 0)")
    _add_library(what)

    how = command.add_argument_group("how to learn")
    how.add_argument("--steps", type=_positive, help="updates in all (default: by data)")
    how.add_argument("--seconds", type=float, help="stop early after this long")
    how.add_argument("--batch-size", type=_positive, help="sequences per update")
    how.add_argument(
        "--accumulate",
        type=_positive,
        help="parts to cut a batch into, one after the other, to save memory (default: 1)",
    )
    how.add_argument("--learning-rate", type=float, help="highest learning rate of AdamW")
    how.add_argument(
        "--optimizer",
        choices=("adamw", "muon"),
        help="of the matrices in blocks (default: by preset)",
    )
    how.add_argument("--muon-learning-rate", type=float, help="highest learning rate of Muon")
    how.add_argument(
        "--schedule",
        choices=("cosine", "inverse_root", "constant", "stable_decay"),
        help="how the learning rate goes on after its rise (default: by preset)",
    )
    how.add_argument(
        "--label-smoothing", type=float, help="share of the target that is spread (default: 0)"
    )

    machine = _add_setup(command, default=None)
    machine.add_argument(
        "--parallel",
        choices=("ddp", "fsdp"),
        help="what processes started by torchrun split: the batch, or the parameters as well "
        "(default: ddp)",
    )

    command = commands.add_parser("evaluate", help="measure a model on what was held out")
    command.add_argument("folder", help="what `train` was given as --out")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument(
        "--baseline", action="store_true", help="measure a 5-gram of characters as well"
    )
    _add_library(command)

    command = commands.add_parser("generate", help="let a model write")
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
    _add_library(command)

    command = commands.add_parser(
        "bench", help="measure how fast this machine trains a model, and lets it write"
    )
    command.add_argument("--preset", default="tiny", help="decoder-only model (default: tiny)")
    command.add_argument("--vocab-size", type=_positive, default=256, help="tokens (default: 256)")
    command.add_argument("--context", type=_positive, default=128, help="length (default: 128)")
    command.add_argument("--batch-size", type=_positive, default=16, help="default: 16")
    command.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    command.add_argument(
        "--seconds", type=float, default=10.0, help="time for training, about (default: 10)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    _add_setup(command, default="auto")

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
        Exit status: 0 when all went well, 1 when another worker is gone, 2 when the user has to
        change something, 128 and the number of the signal when a signal ended the run.

    """
    args = _parser().parse_args(arguments)
    from groundup import commands
    from groundup.distributed import WorkerLostError

    name = f"groundup, worker {os.environ['RANK']}" if "RANK" in os.environ else "groundup"
    try:
        if args.command != "train" and commands.is_worker():
            raise ValueError(f"{args.command} needs one process, torchrun started several")
        return getattr(commands, args.command)(args)
    except WorkerLostError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
