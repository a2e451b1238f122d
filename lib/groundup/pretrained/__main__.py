"""Add a model to those that come with the course, with its record.

    groundup train --data dates ... --out runs/dates
    python -m groundup.pretrained runs/dates

The model is named after the folder. The command in the record is built from the settings in
`config.json`, so it is the one that was run.
"""

import argparse
import hashlib
import json
import platform
import shlex
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import babel
import torch

from groundup.core.models import AnyModel
from groundup.data.batches import covering_windows
from groundup.files import checkpoint
from groundup.looking.throughput import machine
from groundup.pretrained import FILES, FOLDER
from groundup.training.loop import bits_per_byte, evaluate
from groundup.training.tasks import DatesTask, TextTask, recall_task


def command_of(notes: dict[str, Any]) -> str:
    """Return the command that trains a model, with every option explicit.

    Args:
        notes: Of the model's checkpoint.

    """
    training, setup = notes["training"], notes["setup"]
    options = {
        "data": notes["data"],
        "tokenizer": notes["tokenizer"],
        "vocab-size": notes["vocab_size"],
        "preset": notes["preset"],
        "context": notes["context"],
        "seed": notes["seed"],
        "steps": training["steps"],
        "batch-size": notes["batch_size"],
        "accumulate": training["micro_batches"],
        "learning-rate": training["learning_rate"],
        "optimizer": training["optimizer"],
        "muon-learning-rate": (
            training["muon_learning_rate"] if training["optimizer"] == "muon" else None
        ),
        "schedule": training["schedule"],
        "label-smoothing": training["label_smoothing"],
        "precision": training["precision"],
        "compile": "on" if setup["compiled"] else "off",
        "attention": setup["attention"],
        "device": "cpu",
        "threads": 1,
    }
    chosen = [f"--{name}={value}" for name, value in options.items() if value is not None]
    chosen += [f"--set={name}={json.dumps(x)}" for name, x in notes.get("set", {}).items()]
    return shlex.join(["groundup", "train", *chosen])


def describe(folder: Path) -> dict[str, Any]:
    """Evaluate a model that was trained on this machine's data, and make its record.

    Raises:
        ValueError: If the data differ from those that it was trained on.

    """
    torch.set_num_threads(1)  # as the command does
    saved = checkpoint.load(folder)
    notes, model = saved.notes, saved.model
    task = recall_task(notes["data"], saved.tokenizers)
    if task.fingerprint != notes["fingerprint"]:
        raise ValueError(
            f"a record must be made with the data of training, {notes['data_name']}, "
            f"got {task.name}"
        )
    data, loss = _of_text(task, model) if isinstance(task, TextTask) else _of_dates(task, model)
    log = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "command": command_of(notes),
        "data": {"name": task.name, **data},
        "seed": notes["seed"],
        "steps": notes["step"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": loss,
        "hardware": machine(),
        "seconds": round(json.loads(log[-1])["seconds"]),
        "date": datetime.now(UTC).date().isoformat(),
        "sha256": {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES
        },
    }


def _of_text(task: TextTask, model: AnyModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """Evaluate on held-out text, and on as many tokens from the beginning of the training text."""
    tokenizer = task.tokenizers["text"]
    held_out = task.evaluate(model)
    ids = tokenizer.encode(task.data.train)[: held_out["num_tokens"] + 1]
    nats, num_tokens = evaluate(
        model, covering_windows(torch.tensor(ids), 64, model.config.max_len)
    )
    num_bytes = len(tokenizer.decode(ids[1:]).encode())
    data = {"python": platform.python_version(), "sha256": task.fingerprint}
    return data, {
        "train": {
            "bits_per_byte": bits_per_byte(nats, num_tokens, num_bytes),
            "nats_per_token": nats,
        },
        "held_out": {name: held_out[name] for name in ("bits_per_byte", "nats_per_token")},
    }


def _of_dates(task: DatesTask, model: AnyModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """Evaluate on held-out days, and on training days."""
    measured = ("exact_match", "nats_per_token", "num_examples")
    train = task.evaluate_on(model, task.data.train_days)
    held_out = task.evaluate(model)
    return {"babel": babel.__version__}, {
        "train": {name: train[name] for name in measured},
        "held_out": {name: held_out[name] for name in measured},
    }


def main() -> None:
    """Copy a model into this package, and write its record."""
    parser = argparse.ArgumentParser(description="Add a model to those that come with the course.")
    parser.add_argument("folder", type=Path, help="the --out folder of `train`")
    folder = parser.parse_args().folder
    record = describe(folder)
    target = FOLDER / folder.name
    target.mkdir(exist_ok=True)
    for name in FILES:
        shutil.copyfile(folder / name, target / name)
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    (target / "record.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
