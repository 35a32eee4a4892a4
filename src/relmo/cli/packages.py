"""`relmo models` and `relmo package MODEL DIR`"""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.models import describe_text
from relmo.cli.options import Json, Overwrite
from relmo.cli.terminal import print_json, print_message, print_table
from relmo.settings.fields import FrozenSettings, PathName

MB = 1_000_000


class Description(FrozenSettings):
    """Facts about a model that its files do not contain."""

    text: str | None = None
    """The training text, in a few words, such as "12 million words of Danish news"."""
    language: tuple[str, ...] = ()
    """Language of the text, such as en; repeatable."""
    license: str | None = None
    """Licence of the weights, an SPDX expression such as CC-BY-SA-4.0."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entries of `about` in config.json."""
        entries = {"text": self.text, "languages": list(self.language), "license": self.license}
        return {name: value for name, value in entries.items() if value}


Describing = Annotated[Description, Parameter(name="*")]
DESCRIPTION = Description()


def list_models(*, json: Json = False) -> None:
    """List the installed models: those that relmo bundles, and those of packages that were installed with pip.

        relmo models

    A name works wherever a command takes a model, and in `relmo.load`.
    """
    from relmo.store.installed import find_clashes, installed_models

    records = [gather_installed(model) for model in installed_models()]
    for clash in find_clashes():
        print_message(f"warning: {clash}")
    if json:
        print_json(records)
        return
    columns = ["model", "kind", "MB", "language", "score", "trained on", "package"]
    print_table(columns, [_format_row(record) for record in records], left=(0, 1, 3, 4, 5, 6))


def gather_installed(model: Any) -> dict[str, Any]:
    """Return what `relmo models` prints about an installed model."""
    config = model.config
    about, results = (value if isinstance(value := config.get(key), dict) else {} for key in ("about", "results"))
    return {
        "name": model.name,
        "kind": config.get("kind"),
        "bytes": sum(path.stat().st_size for path in model.folder.rglob("*") if path.is_file()),
        "languages": about.get("languages", []),
        "license": about.get("license"),
        "score": describe_score(results),
        "text": describe_text(about, results),
        "package": model.package or "relmo",
        "version": model.version,
        "folder": str(model.folder),
    }


def describe_score(results: dict[str, Any]) -> str:
    """Return the validation score of a model in words; empty if it has none."""
    metric = results.get("metric")
    candidates = [
        (f"valid_{metric}", 100, f"{{:.1f}} {metric}"),
        ("valid_bits_per_character", 1, "{:.2f} bits per character"),
        ("valid_perplexity", 1, "perplexity {:.1f}"),
    ]
    for name, factor, text in candidates:
        if isinstance(value := results.get(name), int | float):
            return text.format(factor * value)
    return ""


def _format_row(record: dict[str, Any]) -> list[str]:
    size, languages = f"{record['bytes'] / MB:.1f}", " ".join(record["languages"])
    package = "" if record["package"] == "relmo" else f"{record['package']} {record['version']}"
    return [record["name"], record["kind"] or "damaged", size, languages, record["score"], record["text"], package]


def package(
    model: PathName,
    destination: Path,
    *,
    name: str,
    version: str = "1.0.0",
    precision: Literal["float32", "float16", "int8", "nf4"] | None = None,
    shard_mb: int | None = None,
    card: Path | None = None,
    description: Describing = DESCRIPTION,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: bool = False,
) -> None:
    """Write a model as a Python package, which others install with pip and load by its name.

    The output is a project for pip, with the weights, the model card and an entry point of the group relmo.models. A
    task's model must hold copies of the models it is built on (trained with --copy), or be built on installed ones.

        relmo package models/danish dist/danish --name relmo-danish --language da --license CC-BY-4.0
        pip install dist/danish
        relmo info danish

    Args:
        model: A model folder, the name of an installed model, or original ELMo files.
        destination: The output folder.
        name: The name of the package. Without "relmo-" it is the name of the model.
        version: The version of the package.
        precision: The stored precision of the weights; by default it does not change.
        shard_mb: Split the weights into files of at most this many megabytes.
        card: A file to use as the model card; by default that of the model folder.
        quiet: Print nothing.
    """
    from relmo.models.packages import write_package

    names = write_package(
        model,
        destination,
        name,
        version=version,
        precision=precision,
        shard_mb=shard_mb,
        card=card,
        about=description.to_dict(),
        overwrite=overwrite,
    )
    if json:
        print_json({"written": str(destination)} | names._asdict() | {"version": version})
    elif not quiet:
        print(f"wrote {destination}: {names.package} {version}")
        print(f"Next: pip install {destination}, and then: relmo info {names.model}")
