"""A model that is handed in is looked at before anything is made of it: hostile files cost nothing.

The files are those of the capstone's author, one of them replaced. Each is refused in a sentence,
in little time and memory, and code that was handed in is never run.
"""

import hashlib
import json
import struct
import time

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save

from classroom.calls.files import File
from classroom.calls.local import LocalSubject
from classroom.exercise.run import run_checks
from groundup import presets
from groundup.core.config import DecoderOnlyConfig
from groundup.core.models import DecoderOnly
from groundup.data.texts import python_reference
from groundup.data.tokenizers import BytePairTokenizer
from groundup.pretrained import FOLDER, load

EXERCISE = "capstone"


@pytest.fixture(scope="module")
def capstone(every_assignment):
    return next(a for a in every_assignment if a.name == "09_inside")


def told(capstone, **changed):
    """Return what the first check of the capstone says to the right files but for some."""
    files = {**capstone.handed_in, **{name.replace("_", "."): d for name, d in changed.items()}}
    subject = LocalSubject(
        capstone.solution(EXERCISE).namespace,
        files={name: File(data) for name, data in files.items() if data is not None},
    )
    started = time.process_time()
    report = run_checks(capstone.handout, EXERCISE, subject)
    assert time.process_time() - started < 5
    assert report.earned == 0
    assert "itself broke" not in report.to_text()
    return report.results[0].message


def config_with(capstone, **fields):
    record = json.loads(capstone.handed_in["config.json"])
    record["config"] |= fields
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_layers": 10**9}, "num_layers must be an integer from 1 to 16, got 1000000000"),
        ({"d_model": -1}, "d_model must be an integer from 1 to 512, got -1"),
        ({"d_ff": 1e3}, "d_ff must be an integer from 1 to 2,048, got 1000.0"),
        ({"vocab_size": True}, "vocab_size must be an integer from 1 to 2,048, got True"),
        ({"max_len": 1}, "max_len must be an integer from 8 to 512, got 1"),
        ({"num_kv_heads": 2.0}, "num_kv_heads must be an integer or null, got 2.0"),
        ({"window": [10**9]}, "window must be an integer or null"),
        ({"head_width": 10**9}, "head_width must be at most 512, got 1000000000"),
        ({"rotary_frequencies": [1.0]}, "config.json does not describe a model"),
        ({"norm_eps": "small"}, "config.json does not describe a model"),
        ({"num_experts": 8}, "config.json does not describe a model"),
        (
            {"d_model": 512, "d_ff": 2048, "num_layers": 16},
            "a model may have at most 1,000,000 parameters",
        ),
    ],
)
def test_a_size_is_refused_before_anything_of_that_size_is_made(capstone, fields, says):
    assert says in told(capstone, config_json=config_with(capstone, **fields))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "config.json must be JSON in UTF-8"),
        (b"\xff\xfe", "config.json must be JSON in UTF-8"),
        (b"[" * 200_000, "config.json must be JSON in UTF-8: it is nested too deeply"),
        (b"[]", "config.json must contain named fields"),
        (b'{"a": NaN}', "config.json must be JSON in UTF-8: NaN is not a number"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "config.json must be JSON in UTF-8"),
        (b" " * 2**19, "config.json may have at most 262,144 bytes; it has 524,288"),
        (b'{"model": "EncoderOnly"}', "must be that of a DecoderOnly model"),
        (b'{"model": "DecoderOnly", "config": 3}', "config.json needs the field config"),
        (None, "`config.json` is not beside the notebook"),
    ],
)
def test_a_configuration_that_is_none_is_refused(capstone, data, says):
    assert says in told(capstone, config_json=data)


def header(text):
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80\x04\x95", "model.safetensors is a pickle"),
        (b"PK\x03\x04", "model.safetensors is a pickle"),
        (b"", "model.safetensors is not a complete safetensors file"),
        (struct.pack("<Q", 2**63), "model.safetensors is not a complete safetensors file"),
        (header(b"[" * 100_000), "model.safetensors is not a complete safetensors file"),
        (header(b"{}"), "model.safetensors and config.json do not belong together"),
        (
            header(b'{"a": {"dtype": "F32", "shape": [1000000000], "data_offsets": [0, 4]}}1234'),
            "model.safetensors is not a complete safetensors file",
        ),
        (
            bytes(32 * 2**20),
            "model.safetensors may have at most 4,194,304 bytes; it has 33,554,432",
        ),
        (None, "`model.safetensors` is not beside the notebook"),
    ],
)
def test_weights_that_are_none_are_refused(capstone, data, says):
    assert says in told(capstone, model_safetensors=data)


def test_weights_of_the_course_are_known_again_when_a_bit_is_flipped(capstone):
    folder = FOLDER / "manual"
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-3] ^= 1
    config = (folder / "config.json").read_bytes()
    said = told(capstone, config_json=config, model_safetensors=bytes(data))
    assert "these are weights that come with the course, not yours" in said


def test_weights_of_the_course_are_known_again_when_their_neurons_change_places(capstone):
    folder, order = FOLDER / "manual", torch.randperm(512)
    weights = load_file(folder / "model.safetensors")
    for block in (f"blocks.{number}.feed_forward" for number in range(3)):
        for name in ("up.weight", "up.bias"):
            weights[f"{block}.{name}"] = weights[f"{block}.{name}"][order]
        down = weights[f"{block}.down.weight"]
        weights[f"{block}.down.weight"] = down[:, order].contiguous()
    # So they no longer stand where they stood; the same for the features of the stream.
    order = torch.randperm(128)
    for name, weight in weights.items():
        if "norm" in name or ".output." in name or ".down." in name:
            weights[name] = weight[order]
        elif weight.dim() == 2:
            weights[name] = weight[:, order].contiguous()
    config = (folder / "config.json").read_bytes()
    said = told(capstone, config_json=config, model_safetensors=save(weights))
    assert "these are weights that come with the course, not yours" in said


def test_weights_of_the_course_are_known_again_when_a_row_is_changed(capstone):
    weights = load_file(FOLDER / "manual" / "model.safetensors")
    config = (FOLDER / "manual" / "config.json").read_bytes()
    row = json.loads(config)["tokenizers"]["text"]["pieces"].index("K")
    weights["embedding.tokens.weight"][row] *= -0.5  # a rare token, whose surprises grow tenfold
    said = told(capstone, config_json=config, model_safetensors=save(weights))
    assert "these are weights that come with the course, not yours" in said


def test_weights_of_the_course_are_known_again_when_text_is_cut_differently(capstone):
    weights = load_file(FOLDER / "manual" / "model.safetensors")
    record = json.loads((FOLDER / "manual" / "config.json").read_bytes())
    # The apostrophe becomes two tokens, neither of which is a character.
    record["tokenizers"]["text"]["merges"].remove(["\u00e2\u0122", "\u013b"])
    # And all predictions are a little less certain.
    weights["final_norm.gain"] *= 0.93
    weights["final_norm.bias"] *= 0.93
    said = told(capstone, config_json=json.dumps(record).encode(), model_safetensors=save(weights))
    assert "these are weights that come with the course, not yours" in said


def test_weights_of_the_course_are_known_again_after_a_short_training(capstone):
    """It moves the surprises on one passage, at places of a window that no mark is about."""
    model, tokenizer = load("manual")
    text, shapes = python_reference(), load_file(FOLDER / "manual" / "model.safetensors")
    passage, learned = (
        torch.tensor(tokenizer.encode(part)).split(length)
        for part, length in ((text.validation[:3000], 64), (text.train[:40_000], 128))
    )
    passage, learned = torch.stack(passage[:-1]), torch.stack(learned[:80])

    def nats(tokens):
        logits = model(tokens[:, :-1]).transpose(1, 2)
        return F.cross_entropy(logits, tokens[:, 1:], reduction="none")

    with torch.no_grad():
        before = nats(passage)
    optimizer = torch.optim.Adam(model.requires_grad_(True).parameters(), lr=3e-4)
    for batch in learned.split(8):
        apart = (nats(passage) - before).abs().clamp(max=0.8).mean()
        optimizer.zero_grad()
        (nats(batch)[:, 64:].mean() - apart).backward()
        optimizer.step()
    weights = {name: model.state_dict()[name].clone() for name in shapes}
    config = (FOLDER / "manual" / "config.json").read_bytes()
    said = told(capstone, config_json=config, model_safetensors=save(weights))
    assert "these are weights that come with the course, not yours" in said


@pytest.mark.parametrize(
    ("tokenizer", "says"),
    [
        (None, "config.json needs a tokenizer called text"),
        ({"kind": "published"}, "must be of a kind that `groundup train` makes; it is published"),
        ({"kind": "byte", "special_tokens": 7}, "cannot read the held-out text"),
        ({"kind": "byte", "special_tokens": []}, "the tokenizer has 256 tokens, the model 512"),
        ({"kind": "character", "characters": "e", "special_tokens": []}, "cannot read the held"),
        (
            {
                "kind": "character",
                "characters": "".join(sorted(set(python_reference().validation))),
                "special_tokens": [],
            },
            "cannot read the training text",
        ),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(capstone, tokenizer, says):
    record = json.loads(capstone.handed_in["config.json"])
    record["tokenizers"] = {"text": tokenizer} if tokenizer else {}
    assert says in told(capstone, config_json=json.dumps(record).encode())


@pytest.mark.slow
def test_what_was_learned_from_the_held_out_part_does_not_count(capstone):
    """A model that knows how often each token occurs there, with tokens that were made for it."""
    text = python_reference().validation
    tokenizer = BytePairTokenizer.fit(text, 2048)
    record = json.loads(capstone.handed_in["config.json"])
    record["tokenizers"] = {"text": tokenizer.to_dict()}
    record["config"] |= {"vocab_size": 2048, "num_layers": 1, "tie_embeddings": False}
    weights = DecoderOnly(presets.from_dict(DecoderOnlyConfig, record["config"])).state_dict()
    weights["final_norm.gain"].zero_()
    weights["final_norm.bias"] = torch.eye(len(weights["final_norm.bias"]))[0]
    counts = torch.tensor(tokenizer.encode(text)).bincount(minlength=2048)
    weights["unembedding.weight"].zero_()[:, 0] = (counts + 0.01).log()
    files = {"config.json": json.dumps(record).encode(), "model.safetensors": save(weights)}
    subject = LocalSubject(
        {EXERCISE: lambda: {"parameters": 1, "bits_per_byte": 1.0}},
        files={name: File(data) for name, data in files.items()},
    )
    report = run_checks(capstone.folder, EXERCISE, subject)
    assert report.results[0].earned and report.earned == 2
    assert "train on the training part alone" in " ".join(report.messages[2].split())


@pytest.mark.slow
def test_a_model_that_computes_nothing_earns_nothing(capstone):
    """Nothing is trained: its bits are known, no head costs anything, and no answer is needed."""
    config = json.loads(config_with(capstone, d_model=2, d_ff=1, num_layers=1, num_heads=1))
    config["config"] |= {"num_kv_heads": None, "vocab_size": 256, "max_len": 8}
    config["config"] |= {"positions": "learned", "tie_embeddings": True}
    config["tokenizers"] = {"text": {"kind": "byte", "special_tokens": []}}
    model = DecoderOnly(DecoderOnlyConfig(**config["config"]))
    weights = save({name: torch.zeros_like(w) for name, w in model.named_parameters()})
    said = {"weights": hashlib.sha256(weights).hexdigest(), "layer": 0, "head": 0}
    files = {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": weights,
        "prediction.json": json.dumps(said | {"low": -0.1, "high": 0.1}).encode(),
    }
    files = {name: File(data) for name, data in files.items()}
    number = sum(each.numel() for each in model.parameters())
    answers = {
        "language_model": lambda config, weights, tokens: torch.zeros(*tokens.shape, 256).double(),
        "step": lambda config, weights, tokens, cache=None: (torch.zeros(*tokens.shape, 256), None),
        "capstone": lambda: {"parameters": number, "bits_per_byte": 8.0},
        "most_missed": lambda bits_without, num_layers, num_heads: (0, 0, 0.0),
        "ablation": lambda: {"cost": 0.0},
    }
    for exercise in ("language_model", "capstone", "ablation"):
        report = run_checks(capstone.handout, exercise, LocalSubject(answers, files=files))
        assert report.earned == 0, report.to_text()
        assert exercise == "language_model" or "train it" in report.to_text()
