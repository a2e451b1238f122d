"""Say at the foot of each page which version of the course it belongs to.

The number stands in `pyproject.toml`, and is read from there.
"""

import tomllib
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def version_of() -> str:
    """Read the version of the course."""
    return tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"]


def show_version(app: Sphinx, config: Config) -> None:
    """Put it into the footer, with a link to what has changed."""
    config.version = config.release = version_of()
    options = config.html_theme_options
    changes = f"{options['repository_url']}/blob/{options['repository_branch']}/CHANGELOG.md"
    told = f'Version {config.version}, <a href="{changes}">what has changed</a>'
    options["extra_footer"] = f"<p>{told}</p>"


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", show_version)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
