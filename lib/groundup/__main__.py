"""The command line: `groundup train`, `evaluate`, `generate`, `import` and `bench`.

The commands are in `commands`, which imports torch and is itself imported only when a command runs,
so that help and errors about options appear at once.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

NAMED_DATA = ("dates", "python-reference", "python-source", "tiny-shakespeare")
"""What `--data` may name; anything else is the path of a text file."""
FOR_TEXT = "tiny, modern, llama, gpt2_small or gpt2_xl"
FOR_DATES = "tiny or paper_base"
"""What `--preset` may name."""


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text}")
    value = {"True": "true", "False": "false", "None": "null"}.get(value, value)
    try:
        return name, json.loads(value)
    except ValueError:  # a word
        return name, value


def _add_library(command: argparse._ActionsContainer) -> None:
    command.add_argument(
        "--library",
        help="package folder, such as `mine` from `classroom mine`, whose functions replace "
        "groundup's in the model, training and sampling",
    )


def _add_setup(command: argparse.ArgumentParser, default: str | None) -> argparse._ArgumentGroup:
    about = (
        "auto: on a GPU, fused and, if supported, bfloat16, on CUDA also compiled; on a CPU, the "
        "setup measured to be fastest if the run is long, otherwise float32, off, fused"
    )
    if default is None:
        about += ". Default with --library: float32, off, explicit; with --resume: as before"
    group = command.add_argument_group("how to compute", about)
    for name, choices, what in (
        ("--precision", ("auto", "float32", "bfloat16"), "dtype of matrix products"),
        ("--compile", ("auto", "on", "off"), "whether torch.compile compiles the model"),
        ("--attention", ("auto", "explicit", "fused"), "step by step, or by torch's fused kernel"),
    ):
        group.add_argument(name, choices=choices, default=default, help=f"{what} (default: auto)")
    return group


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="groundup", description="Train a transformer, evaluate it and generate text with it."
    )
    commands = parser.add_subparsers(
        required=True, dest="command", metavar="train|evaluate|generate|import|bench"
    )

    command = commands.add_parser(
        "train",
        help="train a model, or resume training",
        description="Train a model, or resume training. Several processes can train one model "
        "together: torchrun --nproc_per_node 2 -m groundup train ...",
    )
    command.add_argument(
        "--out", help="folder for the model and its log (default with --library mine: runs/mine)"
    )
    start = command.add_mutually_exclusive_group()
    start.add_argument("--resume", action="store_true", help="resume the run in --out")
    start.add_argument("--overwrite", action="store_true", help="replace the model in --out")

    what = command.add_argument_group("data and model")
    what.add_argument(
        "--data",
        help=f"{', '.join(NAMED_DATA)} (downloaded once), or the path of a UTF-8 text file "
        "(default with --library: python-reference)",
    )
    what.add_argument(
        "--tokenizer",
        choices=("character", "byte", "bpe"),
        help="how to split text into tokens (default: character)",
    )
    what.add_argument("--vocab-size", type=_positive, help="number of bpe tokens (default: 1024)")
    what.add_argument(
        "--preset",
        help=f"size and architecture of the model: for text, {FOR_TEXT}; for dates, {FOR_DATES} "
        "(default: modern for text, tiny for dates or with --library)",
    )
    what.add_argument(
        "--set",
        type=_field,
        action="append",
        metavar="NAME=VALUE",
        help="change a field of the preset, such as num_heads=8 or bias=true; may be repeated",
    )
    what.add_argument(
        "--context",
        type=_positive,
        help="longest sequence, in tokens (default: set by data and preset)",
    )
    what.add_argument("--seed", type=int, help="for weights, batches and dropout (default: 0)")
    _add_library(what)

    how = command.add_argument_group("training")
    how.add_argument(
        "--steps", type=_positive, help="total updates (default: set by data and preset)"
    )
    how.add_argument("--seconds", type=float, help="stop early after this many seconds")
    how.add_argument(
        "--batch-size",
        type=_positive,
        help="sequences per update (default: set by data and preset)",
    )
    how.add_argument(
        "--accumulate",
        type=_positive,
        help="micro-batches per batch, processed in turn to save memory (default: 1)",
    )
    how.add_argument(
        "--learning-rate",
        type=float,
        help="peak learning rate of AdamW (default: set by data and preset)",
    )
    how.add_argument(
        "--optimizer",
        choices=("adamw", "muon"),
        help="for the matrices in blocks (default: set by preset)",
    )
    how.add_argument(
        "--muon-learning-rate",
        type=float,
        help="peak learning rate of Muon (default: set by preset)",
    )
    how.add_argument(
        "--schedule",
        choices=("cosine", "inverse_root", "constant", "stable_decay"),
        help="learning rate after warm-up (default: set by preset)",
    )
    how.add_argument(
        "--label-smoothing",
        type=float,
        help="part of the target spread over all tokens (default: 0)",
    )

    machine = _add_setup(command, default=None)
    machine.add_argument(
        "--recompute",
        action="store_true",
        help="keep only the inputs of blocks and recompute the rest in the backward pass: "
        "less memory, more time, the same numbers",
    )
    machine.add_argument(
        "--parallel",
        choices=("ddp", "fsdp"),
        help="what torchrun's processes split: ddp, the batch; fsdp, the parameters as well "
        "(default: ddp)",
    )

    command = commands.add_parser(
        "evaluate",
        help="evaluate a model on held-out data",
        description="Evaluate a model on the part of its data that was held out from training.",
    )
    command.add_argument("folder", help="the --out folder of `train`")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument(
        "--baseline", action="store_true", help="also evaluate a character 5-gram (text only)"
    )
    _add_library(command)

    command = commands.add_parser(
        "generate",
        help="generate text with a model",
        description="Continue texts with a model. A model for dates converts dates instead: always "
        "greedily, and without regard to --length and the options of sampling.",
    )
    command.add_argument("folder", help="the --out folder of `train` or `import`")
    command.add_argument(
        "--prompt",
        nargs="+",
        help="texts to continue or dates to convert (default: standard input)",
    )
    command.add_argument(
        "--length", type=_positive, default=400, help="at most this many tokens (default: 400)"
    )
    command.add_argument(
        "--temperature", type=float, default=0.8, help="lower is less random (default: 0.8)"
    )
    command.add_argument(
        "--top-k", type=int, help="sample from the k most probable tokens only (default: all)"
    )
    command.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        help="sample from the fewest tokens whose probabilities sum to at least this (default: 1)",
    )
    command.add_argument(
        "--greedy", action="store_true", help="always take the most probable token"
    )
    command.add_argument("--seed", type=int, default=0, help="for sampling (default: 0)")
    _add_library(command)

    about = "measure how fast this machine trains a model and generates with it"
    command = commands.add_parser("bench", help=about, description=f"{about.capitalize()}.")
    about = f"decoder-only model: {FOR_TEXT} (default: tiny)"
    command.add_argument("--preset", default="tiny", help=about)
    for name, default, about in (
        ("--vocab-size", 256, "tokens in the vocabulary"),
        ("--context", 128, "tokens per sequence"),
        ("--batch-size", 16, "sequences per batch"),
    ):
        about = f"{about} (default: {default})"
        command.add_argument(name, type=_positive, default=default, help=about)
    command.add_argument(
        "--optimizer",
        choices=("adamw", "muon"),
        default="adamw",
        help="for the matrices in blocks (default: adamw)",
    )
    command.add_argument(
        "--seconds", type=float, default=10.0, help="approximate training time (default: 10)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    _add_setup(command, default="auto")

    for command in commands.choices.values():
        command.add_argument(
            "--device",
            choices=("auto", "cpu", "cuda", "mps"),
            default="auto",
            help="what to compute on; auto (default) uses a GPU if there is one",
        )
        command.add_argument(
            "--threads",
            type=_positive,
            help="CPU threads (default: 1 below 2 million parameters, otherwise torch's choice)",
        )

    command = commands.add_parser(
        "import",
        help="import a published model: GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma",
        description="Import a published model from a folder, as downloaded, in the format of "
        "Hugging Face's transformers: config.json, model.safetensors, tokenizer.json. "
        "Rotary scaling is supported: linear, llama3, yarn, and dynamic up to the model's length.",
    )
    command.add_argument("folder", help="the folder of the published model")
    command.add_argument("--out", required=True, help="folder for the model")
    command.add_argument("--overwrite", action="store_true", help="replace the model in --out")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Without the name of the program; by default those of the process.

    Returns:
        Exit status: 0 on success, 1 if another worker was lost, 2 for a user error, 128 plus the
        number of the signal if a signal ended the run.

    """
    args = _parser().parse_args(arguments)
    from groundup import commands
    from groundup.training.distributed import WorkerLostError

    name = f"groundup, worker {os.environ['RANK']}" if "RANK" in os.environ else "groundup"
    try:
        if args.command != "train" and commands.is_worker():
            raise ValueError(f"{args.command} needs one process: run it without torchrun")
        if args.command == "import":  # which is a word of Python
            return commands.import_model(args)
        return getattr(commands, args.command)(args)
    except WorkerLostError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
