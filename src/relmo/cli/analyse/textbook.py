"""`relmo analyse activations` and `relmo analyse clipping`: two pages of a textbook."""

from pathlib import Path

from relmo.cli.output import Overwrite, check_plot


def activations(
    *names: str,
    low: float = -6.0,
    high: float = 6.0,
    points: int = 241,
    plot: Path | None = None,
    overwrite: Overwrite = False,
    json: bool = False,
) -> None:
    """Activation functions and their derivatives: how large a slope can be, and how much of x is flat.

        relmo analyse activations --plot activations.png

        relmo analyse activations sigmoid tanh relu gelu --json

    Parameters
    ----------
    names
        Which: sigmoid, tanh, relu, hard_sigmoid, softplus, gelu, identity; the first three where none is given.
    low
        Where x begins.
    high
        Where x ends.
    points
        How many there are.
    plot
        Draw them to this .png or .svg file.
    json
        Print one JSON object with all points.
    """
    from relmo.analysis.memory import activations as library
    from relmo.cli.analyse.given import print_tables
    from relmo.cli.report import print_json

    check_plot(plot, overwrite=overwrite)
    found = library.activations(names or library.SHOWN, low=low, high=high, points=points)
    if plot is not None:
        library.draw_activations(found, plot)
    if json:
        print_json({"activations": [each.as_dict() for each in found]})
    else:
        print_tables(library.activation_table(found))


def clipping(
    *,
    w: float = 5.5,
    b: float = -2.5,
    lr: float = 0.3,
    clip: float = 0.5,
    steps: int = 200,
    plot: Path | None = None,
    overwrite: Overwrite = False,
    json: bool = False,
) -> None:
    """Why gradients are clipped: a cliff in the loss of a recurrent network with one unit, descent with and without.

        relmo analyse clipping --plot cliff.png

    Parameters
    ----------
    w
        The recurrent weight to start from.
    b
        The bias to start from.
    lr
        How far a step goes.
    clip
        The norm that gradients are scaled down to.
    steps
        How many.
    plot
        Draw the surface and both ways over it to this .png or .svg file.
    json
        Print one JSON object with the surface and all steps.
    """
    from relmo.analysis.memory import clipping as library
    from relmo.cli.analyse.given import print_tables
    from relmo.cli.report import print_json

    check_plot(plot, overwrite=overwrite)
    cliff = library.clipping(start=(w, b), lr=lr, clip=clip, steps=steps)
    if plot is not None:
        library.draw_clipping(cliff, plot)
    if json:
        print_json(cliff.as_dict())
    else:
        print_tables(cliff.table())
