"""What the two installs take: megabytes to download, megabytes on disk, and minutes.

Each is downloaded into an empty folder and installed from there into a fresh environment, so that
the minutes do not depend on a network. Torch is the one without CUDA, which pip must be told where
to find if it is not the default:

    PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu \
        pytest -o addopts=--import-mode=importlib -m benchmark tests/benchmarks/test_install.py
"""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from groundup.looking.throughput import machine

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).parent / "records" / "install.json"


def megabytes(folder):
    return round(sum(f.lstat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6)


@pytest.mark.parametrize("name", ["requirements-learn.txt", "requirements.txt"])
def test_an_install(name, tmp_path):
    files, environment = tmp_path / "files", tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    lists = ("requirements-learn.txt", "requirements.txt")
    for each in lists:
        text = (ROOT / each).read_text(encoding="utf-8")
        (tmp_path / each).write_text(text.replace("-e .", "setuptools>=77"), encoding="utf-8")
    pip = [python, "-m", "pip", "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, "download", "-d", files, "-r", name], cwd=tmp_path, check=True)
    empty, began = megabytes(environment), time.perf_counter()
    offline = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
    subprocess.run(
        [*pip, "install", "--find-links", files, "-r", name], cwd=ROOT, env=offline, check=True
    )
    seconds = time.perf_counter() - began
    about = machine()
    found = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found[name] = {
        "megabytes to download": megabytes(files),
        "megabytes on disk": megabytes(environment) - empty,
        "minutes to install": round(seconds / 60, 1),
        "packages": len(list(files.iterdir())),
        "hardware": f"{about['processor']}, {os.cpu_count()} cores, Python "
        f"{sys.version_info.major}.{sys.version_info.minor}, torch without CUDA",
        "load": f"{os.getloadavg()[0]:.1f}",
        "date": datetime.now(UTC).date().isoformat(),
    }
    RECORD.write_text(json.dumps(dict(sorted(found.items())), indent=2) + "\n", encoding="utf-8")
    has_nbgrader = subprocess.run([python, "-c", "import nbgrader"], capture_output=True)
    assert (has_nbgrader.returncode == 0) == (name == "requirements.txt")
