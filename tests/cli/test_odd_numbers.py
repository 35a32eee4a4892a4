"""Numbers as they may be typed: not finite, not whole, huge. Each is one line before anything is read."""

import pytest

from relmo.cli import main

HUGE = "100000000000000000000"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("generate prose --temperature nan", "--temperature must be a finite"),
        ("generate prose --temperature inf", "--temperature must be a finite"),
        ("generate prose --temperature 1e400", "--temperature must be a finite"),
        ("generate prose --samples 100000000", "at most 1000000"),
        ("generate prose --top-k 2.5", "--top-k must be a whole"),
        (f"generate prose --beams {HUGE}", "at most 9223372036854775807"),
        ("generate prose --seed=-1", "--seed must be 0 or more"),
        (f"evaluate prose a.txt --batch {HUGE}", "--batch must be at most"),
        (f"embed a.txt --out a.npz --tokens-per-batch {HUGE}", "--tokens-per-batch must be at most"),
        ("analyse cells prose a.txt --order 1000000000", "--order must be at most 20"),
        ("analyse gradients --hidden 0", "--hidden must be 1 or more"),
        ("analyse gradients --forget-bias 1,nan", "--forget-bias"),
        ("analyse truncation prose --lengths inf", "--lengths"),
        ("analyse counting --lr nan", "--lr must be a finite number"),
        ("analyse agreement prose a.csv --draws 0", "--draws must be 1 or more"),
        ("train lm a.txt --out m --lr nan", "--lr must be a finite"),
        ("train lm a.txt --out m --hidden 2.5", "--hidden must be a whole"),
        ("train lm a.txt --out m --seed=-1", "--seed must be 0 or more"),
    ],
)
def test_a_number_that_nothing_can_be_done_with_is_one_line(
    command: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(command.split())
    output, errors = capsys.readouterr()
    assert end.value.code == 2
    assert output == ""
    assert errors.startswith("error: ")
    assert says in errors
    assert errors.count("\n") == 1
