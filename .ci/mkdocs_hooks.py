"""Hooks of the documentation site: local scripts for diagrams and search. No page loads anything from another host."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import Abort
from mkdocs.structure.files import File, Files

FETCHED = Path(__file__).resolve().parents[1] / ".cache" / "docs"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in ("mermaid.min.js", "iframe-worker.js"):
        if not (FETCHED / name).exists():
            raise Abort(f"{FETCHED / name} is missing: run `make docs`, which fetches it once with npm")
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(FETCHED / name)))
    return files
