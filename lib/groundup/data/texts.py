"""Texts to train on. Only `tiny_shakespeare` downloads anything."""

import gzip
import logging
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class TextData:
    """One long text, with its last tenth held out."""

    name: str
    """Name of the text, with its version where it has one."""
    train: str
    """The training part."""
    validation: str
    """The held-out part, for evaluation only."""


def split_text(name: str, text: str) -> TextData:
    """Hold out the last tenth of a text.

    The end, not random passages: training text on both sides would give those away.

    Raises:
        ValueError: If the text is shorter than `MIN_TEXT_LENGTH`.

    """
    if len(text) < MIN_TEXT_LENGTH:
        raise ValueError(
            f"a text must have at least {MIN_TEXT_LENGTH} characters, got {len(text)} in {name}"
        )
    cut = len(text) * 9 // 10
    return TextData(name=name, train=text[:cut], validation=text[cut:])


MIN_TEXT_LENGTH = 20
"""In characters, so that both parts of a split have at least one character and a next one."""


def python_reference() -> TextData:
    """Read the Python language reference, about 370 thousand characters of technical English.

    Some of its sections quote one another at length; repeated paragraphs are dropped, so that the
    held-out part does not repeat the training part.

    Source:
        The Python Language Reference, https://docs.python.org/3/reference/, as the module
        `pydoc_data.topics` of Python 3.11.7.

    """
    return _of_python("python-reference")


def python_source() -> TextData:
    """Read the source of the standard library: its top-level modules, in alphabetical order.

    About 4.7 million characters, from Python 3.11.7.
    """
    return _of_python("python-source")


def _of_python(name: str) -> TextData:
    """Read a text that lies beside this module: every Python then gives the same figures."""
    packed = Path(__file__).with_name(f"{name}.txt.gz").read_bytes()
    return split_text(f"{name} of Python 3.11.7", gzip.decompress(packed).decode())


def text_file(path: str | Path) -> TextData:
    """Read any text file.

    Raises:
        ValueError: If the file is missing, empty, too short, or not UTF-8.

    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"a text file must be UTF-8, got an invalid byte at offset {error.start} of {path}"
        ) from None
    except OSError as error:
        raise ValueError(f"data must be a readable file, got {path}: {error.strerror}") from None
    if not text.strip():
        raise ValueError(f"a text file must not be blank, got an empty file: {path}")
    return split_text(str(path), text)


TINY_SHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
"""Address of the published text."""
TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
"""Hash of the published text: 1,115,394 characters, all of them ASCII."""


def tiny_shakespeare(
    url: str = TINY_SHAKESPEARE_URL,
    sha256: str = TINY_SHAKESPEARE_SHA256,
    folder: str | Path | None = None,
) -> TextData:
    """Read a million characters of Shakespeare, a common benchmark for small language models.

    The first call downloads the text into a cache folder, and later calls read it from there.

    Args:
        url: Address of the text, such as that of a mirror.
        sha256: Hash that its bytes must have, in hexadecimal digits.
        folder: The cache folder; by default that of `pooch`.

    Raises:
        ValueError: If the download fails, or the file has another hash; it is then not kept.

    Source:
        Karpathy 2015, char-rnn, https://github.com/karpathy/char-rnn

    """
    import pooch  # only this function needs it

    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, got {url!r}")
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)  # a library does not print
    try:
        path = pooch.retrieve(url, f"sha256:{sha256}", "tiny-shakespeare.txt", folder)
    except OSError as error:  # includes all network errors and a full disk
        response = getattr(error, "response", None)
        reason = type(error).__name__ if response is None else f"status {response.status_code}"
        raise ValueError(
            f"tiny-shakespeare must be downloaded once, got {reason} from {url}; without "
            "access, use the path of your own copy: `--data PATH`, in Python `text_file(PATH)`"
        ) from None
    except ValueError:
        raise ValueError(
            f"the file at {url} must have the SHA256 {sha256}, got another file: not kept"
        ) from None
    finally:
        logger.setLevel(level)
    text = Path(path).read_text(encoding="utf-8")
    return split_text(f"tiny-shakespeare of SHA256 {sha256[:8]}", text)
