"""`relmo.train`: a model of any kind from files, as `relmo train KIND` makes it, and loaded when it is done."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from relmo.errors import RelmoError, SettingError, StorageError
from relmo.runs.files import Data, DataFrame, listed_files, one_file, remove_frame_files, write_frame
from relmo.runs.folder import CHECKPOINT, RUN, read_run
from relmo.runs.progress import shown_progress
from relmo.runs.run import Stopped
from relmo.runs.settings import check_kind, flags_of, keyword_settings, settings_layers
from relmo.settings.arguments import typed
from relmo.settings.kinds import model_class, training_function

if TYPE_CHECKING:
    from relmo.loading import Model
    from relmo.models.bilm import BiLM
    from relmo.models.lm import LanguageModel
    from relmo.models.vectors import WordVectors
    from relmo.tasks.classifier import Classifier
    from relmo.tasks.coref import Coreference
    from relmo.tasks.pairs import SentencePairs
    from relmo.tasks.reader import PassageReader
    from relmo.tasks.seq2seq import Seq2Seq
    from relmo.tasks.srl import RoleLabeller
    from relmo.tasks.tagger import Tagger

SWITCHES = ("resume", "overwrite")
OWN = ("out", "valid", "preset", "config", *SWITCHES, "progress")
FLAG = re.compile(r"(?<!\S)--([a-z][a-z-]*)")
COMMAND = re.compile(r"\b(relmo [a-z]|torchrun )")


@overload
def train(kind: Literal["lm"], files: Data | None = None, *, out: str | Path, **options: Any) -> "LanguageModel": ...
@overload
def train(kind: Literal["bilm"], files: Data | None = None, *, out: str | Path, **options: Any) -> "BiLM": ...
@overload
def train(
    kind: Literal["skipgram"], files: Data | None = None, *, out: str | Path, **options: Any
) -> "WordVectors": ...
@overload
def train(
    kind: Literal["classifier"], files: Data | None = None, *, out: str | Path, **options: Any
) -> "Classifier": ...
@overload
def train(kind: Literal["pairs"], files: Data | None = None, *, out: str | Path, **options: Any) -> "SentencePairs": ...
@overload
def train(kind: Literal["tagger"], files: Data | None = None, *, out: str | Path, **options: Any) -> "Tagger": ...
@overload
def train(
    kind: Literal["reader"], files: Data | None = None, *, out: str | Path, **options: Any
) -> "PassageReader": ...
@overload
def train(kind: Literal["srl"], files: Data | None = None, *, out: str | Path, **options: Any) -> "RoleLabeller": ...
@overload
def train(kind: Literal["coref"], files: Data | None = None, *, out: str | Path, **options: Any) -> "Coreference": ...
@overload
def train(kind: Literal["seq2seq"], files: Data | None = None, *, out: str | Path, **options: Any) -> "Seq2Seq": ...
@overload
def train(kind: str, files: Data | None = None, *, out: str | Path, **options: Any) -> "Model": ...
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
    """Trains a model on files and returns it, as the class of its kind; the same as `relmo train KIND FILES --out OUT`.

        model = relmo.train("lm", "corpus.txt", preset="word", epochs=3, out="models/mine")
        tagger = relmo.train("tagger", "train.conllu", valid="dev.conllu", elmo="small", out="models/pos")

    kind       lm, bilm, skipgram, classifier, pairs, tagger, reader, srl, coref or seq2seq
    files      the path of a file to train on, or several; for tasks also a pandas DataFrame with the columns of a
               table file (text and label for a classifier); a run that goes on needs none
    out        the folder to write the model to
    valid      the file or DataFrame to validate on; a part of the training files is held out where it is not given
    preset     begin from the settings of this name that ship with relmo
    config     a TOML file of settings, over the preset's
    resume     go on with the run in `out` from its last checkpoint
    overwrite  begin anew where `out` holds a model or a run already, in its place
    progress   show how far the run is: a bar in a terminal or a notebook, lines elsewhere; False is silent
    settings   every flag of `relmo train KIND` is a keyword of the same name, with underscores, and the same default;
               `relmo train KIND --help` lists them. They go over the preset and the file

    The model's `results` are the scores of the validation part. Ctrl-C writes a checkpoint and raises
    KeyboardInterrupt; the same call with resume=True goes on from there.
    """
    check_kind(kind)
    if not isinstance(out, str | Path):
        raise SettingError(f"out is the path of a folder, not {typed(out)}")
    if out == "":
        raise SettingError('out is empty; name a folder, for example out="models/mine"')
    out = Path(out)
    go_on = f'relmo.train("{kind}", out="{out}", resume=True)'
    try:
        valid = write_frame(valid, kind, out, "valid")
        layers = settings_layers(
            kind,
            resumed=out if resume else None,
            preset=preset,
            config=None if config is None else Path(one_file(config)),
        )
        said = settings if valid is None else settings | {"valid": one_file(valid)}
        made = keyword_settings(kind, layers, said, OWN)
        listed = listed_files(write_frame(files, kind, out, "train")) or (read_run(out)["files"] if resume else [])
        if not listed:
            raise SettingError("no corpus: give one or more files")
        with shown_progress(quiet=not progress) as reporter:
            training_function(kind)(listed, made, out, resume=resume, overwrite=overwrite, reporter=reporter)
            reporter.said(f"saved to {out}")
    except (Stopped, KeyboardInterrupt):
        how = f"; go on with {go_on}" if (out / RUN).exists() else ""
        raise KeyboardInterrupt(f"stopped{how}") from None
    except RelmoError as error:
        left = isinstance(error, StorageError) and (out / CHECKPOINT).exists()
        error.args = (in_python(f"{error}; go on with {go_on}" if left else str(error), kind),)
        raise
    finally:
        if not (out / RUN).exists():  # an interrupted run reads them again
            remove_frame_files(out)
    return model_class(kind).from_pretrained(out, device=made.train.device)


def in_python(message: str, kind: str) -> str:
    """A message that names flags of the command line, with keywords in their places; one that quotes a command stays
    as it is."""
    if COMMAND.search(message):
        return message
    flags = flags_of(kind)
    switches = {*SWITCHES, *(name for name, flag in flags.items() if isinstance(flag.default, bool))}

    def keyword(flag: re.Match[str]) -> str:
        name = flag[1].replace("-", "_")
        return flag[0] if name not in (*OWN, *flags) else f"{name}=True" if name in switches else name

    return FLAG.sub(keyword, message)
