"""`relmo.train`: train a model of any kind on files, like `relmo train KIND`, and load it."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, overload, runtime_checkable

from relmo.disk.outputs import atomic
from relmo.errors import RelmoError, SettingError, StorageError
from relmo.runs.folder import CHECKPOINT, RUN, Files, check_path, list_paths, read_run
from relmo.runs.progress import progress_reporter
from relmo.runs.run import TrainingInterrupted
from relmo.runs.settings import check_kind, flags_of, keyword_settings, settings_layers
from relmo.settings.fields import describe_value
from relmo.settings.kinds import TASKS, model_class, training_function

if TYPE_CHECKING:
    from relmo.loading import Model
    from relmo.models.bilm import BiLM
    from relmo.models.lm import LanguageModel
    from relmo.models.vectors import WordVectors
    from relmo.tasks.classifier import Classifier, SentencePairs
    from relmo.tasks.coref import Coreference
    from relmo.tasks.reader import PassageReader
    from relmo.tasks.seq2seq import Seq2Seq
    from relmo.tasks.srl import RoleLabeller
    from relmo.tasks.tagger import Tagger

SWITCHES = ("resume", "overwrite")
RESERVED_KEYWORDS = ("out", "valid", "preset", "config", *SWITCHES, "progress")
FLAG = re.compile(r"(?<!\S)--([a-z][a-z-]*)")
COMMAND = re.compile(r"\b(relmo [a-z]|torchrun )")


@runtime_checkable
class DataFrame(Protocol):
    """Interface of `pandas.DataFrame` that is used here."""

    columns: Any

    def to_json(self, path: Any, /, **options: Any) -> Any:
        """Write the rows to a JSON file."""


Data: TypeAlias = Files | DataFrame
Folder: TypeAlias = str | Path


@overload
def train(kind: Literal["lm"], files: Data | None = None, *, out: Folder, **options: Any) -> "LanguageModel": ...
@overload
def train(kind: Literal["bilm"], files: Data | None = None, *, out: Folder, **options: Any) -> "BiLM": ...
@overload
def train(kind: Literal["skipgram"], files: Data | None = None, *, out: Folder, **options: Any) -> "WordVectors": ...
@overload
def train(kind: Literal["classifier"], files: Data | None = None, *, out: Folder, **options: Any) -> "Classifier": ...
@overload
def train(kind: Literal["pairs"], files: Data | None = None, *, out: Folder, **options: Any) -> "SentencePairs": ...
@overload
def train(kind: Literal["tagger"], files: Data | None = None, *, out: Folder, **options: Any) -> "Tagger": ...
@overload
def train(kind: Literal["reader"], files: Data | None = None, *, out: Folder, **options: Any) -> "PassageReader": ...
@overload
def train(kind: Literal["srl"], files: Data | None = None, *, out: Folder, **options: Any) -> "RoleLabeller": ...
@overload
def train(kind: Literal["coref"], files: Data | None = None, *, out: Folder, **options: Any) -> "Coreference": ...
@overload
def train(kind: Literal["seq2seq"], files: Data | None = None, *, out: Folder, **options: Any) -> "Seq2Seq": ...
@overload
def train(kind: str, files: Data | None = None, *, out: Folder, **options: Any) -> "Model": ...
def train(
    kind: str,
    files: Data | None = None,
    *,
    out: str | Path,
    valid: str | Path | DataFrame | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Any:
    """Train a model on files and return it; equivalent to `relmo train KIND FILES --out OUT`.

        model = relmo.train("lm", "corpus.txt", preset="word", epochs=3, out="models/mine")
        tagger = relmo.train("tagger", "train.conllu", valid="dev.conllu", elmo="small", out="models/pos")

    kind       lm, bilm, skipgram, classifier, pairs, tagger, reader, srl, coref or seq2seq
    files      path of a training file, or several; for tasks also a pandas DataFrame with the columns of a table file
               (text and label for a classifier); not needed to resume a run
    out        folder of the model
    valid      validation file or DataFrame; by default a part of the training files is held out
    preset     name of bundled settings to start from
    config     TOML file of settings, which override the preset
    resume     resume the run in `out` from its last checkpoint
    overwrite  replace the model or run in `out`
    progress   show a progress bar in a terminal or a notebook, lines elsewhere; False is silent
    settings   every flag of `relmo train KIND` is a keyword of the same name, with underscores, and the same default;
               `relmo train KIND --help` lists them. They override the preset and the file

    The model's `results` are the scores of the validation part. Ctrl-C writes a checkpoint and raises
    KeyboardInterrupt; the same call with resume=True continues from there.
    """
    check_kind(kind)
    if not isinstance(out, str | Path):
        raise SettingError(f"out must be the path of a folder, not {describe_value(out)}")
    if out == "":
        raise SettingError('out is empty; name a folder, for example out="models/mine"')
    out = Path(out)
    frames = {part: Path(f"{out.absolute()}.{part}-frame.jsonl") for part in ("train", "valid")}
    resume_call = f'relmo.train("{kind}", out="{out}", resume=True)'
    try:
        valid = _write_frame(valid, kind, out, frames["valid"])
        layers = settings_layers(
            kind,
            resumed=out if resume else None,
            preset=preset,
            config=None if config is None else Path(check_path(config)),
        )
        keywords = settings if valid is None else settings | {"valid": check_path(valid)}
        run_settings = keyword_settings(kind, layers, keywords, RESERVED_KEYWORDS)
        paths = list_paths(_write_frame(files, kind, out, frames["train"])) or (
            read_run(out)["files"] if resume else []
        )
        if not paths:
            raise SettingError("no corpus: give one or more files")
        with progress_reporter(quiet=not progress) as reporter:
            training_function(kind)(paths, run_settings, out, resume=resume, overwrite=overwrite, reporter=reporter)
            reporter.on_message(f"saved to {out}")
    except (TrainingInterrupted, KeyboardInterrupt):
        advice = f"; resume with {resume_call}" if (out / RUN).exists() else ""
        raise KeyboardInterrupt(f"stopped{advice}") from None
    except RelmoError as error:
        can_resume = isinstance(error, StorageError) and (out / CHECKPOINT).exists()
        error.args = (in_python(f"{error}; resume with {resume_call}" if can_resume else str(error), kind),)
        raise
    finally:
        if not (out / RUN).exists():  # a resumed run reads them again
            for path in frames.values():
                path.unlink(missing_ok=True)
    return model_class(kind).from_pretrained(out, device=run_settings.train.device)


def _write_frame(data: Any, kind: str, out: Path, path: Path) -> Any:
    """Write a DataFrame as JSON lines, unless `out` holds a run; return the path, or anything else unchanged."""
    if not isinstance(data, DataFrame):
        return data
    if kind not in TASKS:
        raise SettingError(
            f"kind {kind} is trained on plain text, not on a DataFrame; write the text column to a file, one sentence "
            "or paragraph per line, and give the path of that file"
        )
    if (out / RUN).exists() and path.exists():
        return str(path)
    try:
        with atomic(path) as temporary:
            data.to_json(temporary, orient="records", lines=True, force_ascii=False, double_precision=15)
    except ValueError as error:
        raise SettingError(f"the DataFrame cannot be written as a table: {error}") from error
    return str(path)


def in_python(message: str, kind: str) -> str:
    """Replace flags of the command line in a message by keywords, unless it quotes a command."""
    if COMMAND.search(message):
        return message
    flags = flags_of(kind)
    switches = {*SWITCHES, *(name for name, flag in flags.items() if isinstance(flag.default, bool))}

    def keyword(flag: re.Match[str]) -> str:
        name = flag[1].replace("-", "_")
        return flag[0] if name not in (*RESERVED_KEYWORDS, *flags) else f"{name}=True" if name in switches else name

    return FLAG.sub(keyword, message)
