"""The command line: parse, call, print."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class Commands(TyperGroup):
    """The commands; Ctrl-C ends each with a line on what is kept. Typer itself would end without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run one."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("squareloss: stopped. What is done is kept; the same command goes on.", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    help="Train classifiers with square loss, and know what they do.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)
data_app = typer.Typer(help="Fetch and list data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="Folder for data sets. Default: $SQUARELOSS_DATA, else ~/.cache/squareloss.", show_default=False
    ),
]


def _version(asked: bool) -> None:
    if asked:
        from squareloss import __version__

        typer.echo(f"squareloss {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Options of the program itself."""


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="cifar10 or cifar100.")], directory: DataDir = None) -> None:
    """Download an official data set: resumed, verified, unpacked."""
    from squareloss.lab.data import download

    typer.echo(download.get(name, directory, progress=True))


@data_app.command("list")
def data_list(directory: DataDir = None) -> None:
    """List the data sets known by name, and where they are."""
    from squareloss.lab.data import sources

    for name, place in sources.places(directory).items():
        typer.echo(f"{name:<10}{place}")


Data = Annotated[
    str, typer.Argument(help="digits, cifar10, cifar100, or a path: .csv, .parquet, .npz, or a folder of images by class.")
]
Target = Annotated[str | None, typer.Option(help="The column to predict, of a .csv or .parquet.", show_default=False)]
Size = Annotated[int | None, typer.Option(help="Bring the images of a folder to SIZE x SIZE.", show_default=False)]
Model = Annotated[
    str,
    typer.Option(
        help="auto, mlp, resnet8, resnet18, wrn16_10, or package.module:function for your own network: "
        "function(shape, outputs) returns an nn.Module that takes inputs (N, *shape) and gives (N, outputs)."
    ),
]
Losses = Annotated[
    str,
    typer.Option(
        help="What to compare, the first being what the others are compared to: ce, simplex, one_hot (0/1 targets), "
        "one_hot_15 (for one or two hundred classes), scaled_one_hot (for more), squentropy, ce_smoothed, focal, brier; each "
        "also with +temperature or +asinh, which read the same network through a calibrator fitted on the validation split."
    ),
]
Seeds = Annotated[int | None, typer.Option(help="How many seeds. Default: 5, or 3 with --quick.", show_default=False)]
RecipeName = Annotated[
    str | None, typer.Option(help="small, fast, paper or paper_128. Default: by the data.", show_default=False)
]
Epochs = Annotated[int | None, typer.Option(help="Epochs, instead of the recipe's.", show_default=False)]
BatchSize = Annotated[int | None, typer.Option(help="Batch size, instead of the recipe's.", show_default=False)]
Augment = Annotated[
    bool | None, typer.Option(help="Crop and flip images at random. Default: for CIFAR only.", show_default=False)
]
Rates = Annotated[
    str | None,
    typer.Option(help="Learning rates to choose from, such as 0.03,0.1,0.3. Default: about the recipe's.", show_default=False),
]
Radii = Annotated[
    str | None,
    typer.Option(help="l_inf radii for images in [0, 1], such as 1/255,2/255. Default: by size.", show_default=False),
]
Attacked = Annotated[
    int | None, typer.Option(help="Test points to attack. Default: 1000, or 300 with --quick.", show_default=False)
]
Quick = Annotated[bool, typer.Option("--quick", help="A short version, which says what it cut: minutes on 2 cores.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results. Default: one in runs/, by name.", show_default=False)]
Engine = Annotated[
    str, typer.Option(help="Where jobs run: auto, local (this process), processes (a pool) or ray (a cluster).", metavar="NAME")
]
Workers = Annotated[int | None, typer.Option(help="Jobs at once. Default: one per core, or per GPU.", show_default=False)]
Address = Annotated[str | None, typer.Option(help="Address of a Ray cluster, with --engine ray.", show_default=False)]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Force = Annotated[bool, typer.Option("--force", help="Do again what is done; without it, a second start goes on.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress while it runs.")]
Board = Annotated[Path | None, typer.Option("--tensorboard", help="Folder for TensorBoard event files.", show_default=False)]


@app.command()
def compare(
    data: Data = "digits",
    target: Target = None,
    size: Size = None,
    model: Model = "auto",
    losses: Losses = "ce,ce+temperature,simplex,simplex+temperature",
    seeds: Seeds = None,
    recipe: RecipeName = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    augment: Augment = None,
    lrs: Rates = None,
    eps: Radii = None,
    attacked: Attacked = None,
    device: Device = "auto",
    engine: Engine = "auto",
    workers: Workers = None,
    address: Address = None,
    out: Out = None,
    quick: Quick = False,
    quiet: Quiet = False,
    force: Force = False,
    tensorboard: Board = None,
) -> None:
    """Which loss serves your data best? Trains the same network with each, alike in all else, and measures it.

    Every loss gets the same splits, initial weights and batches, and its learning rate from the same grid by the validation
    split. Measured are accuracy, calibration, noise and robustness, with intervals; it ends in plain words and a page to
    share (report.html in the results folder, runs/compare-NAME by default). Stopped, the same command goes on.

    Examples:

      squareloss compare digits --quick

      squareloss compare wine.csv --target quality --losses ce,simplex,squentropy

      squareloss compare photos/ --size 32 --model mynet:build --eps 1/255,2/255
    """
    from squareloss.lab.studies import run
    from squareloss.lab.studies.compare.plan import plan
    from squareloss.lab.studies.compare.study import check_apart, default_folder

    planned = plan(
        data, target=target, size=size, model=model, losses=losses, seeds=seeds, recipe=recipe, epochs=epochs,
        batch_size=batch_size, augment=augment, lrs=_numbers("lrs", lrs), eps=_numbers("eps", eps), attacked=attacked,
        device=device, quick=quick,
    )  # fmt: skip
    folder = out or default_folder(planned.study)
    check_apart(planned.study, folder)
    options = run.Options(engine, workers, address, planned.device, force, quiet, tensorboard)
    _end(run.carry_out(planned.study, "laptop", planned.seeds, planned.header, folder, options))


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="A study, or list to see them all with what they cost.")] = "list",
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), laptop (minutes on 2 cores) or paper (as in the paper).")
    ] = "laptop",
    cells: Annotated[
        str | None,
        typer.Option(help="Which cells to run, by name, such as `'resnet18-*,*-clean'`. Default: all.", show_default=False),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="How many seeds (3), or which (0,2,4 or 2-5). Default: the study's own number for the scale.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="NAME=VALUE: another reading of what the paper leaves open; `list` shows them.", show_default=False
        ),
    ] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    workers: Workers = None,
    address: Address = None,
    out: Out = None,
    quiet: Quiet = False,
    force: Force = False,
    tensorboard: Board = None,
) -> None:
    """Run a study of the paper, and print its numbers beside the paper's. `squareloss reproduce list` shows them all.

    A study may be run in pieces, in one folder: what is done is kept and shown, and never done again. Other settings (--scale,
    --set) may go to the same folder: its report has a part for each.

    Example:

      squareloss reproduce table1 --scale paper --cells 'resnet18-cifar10-*' --seeds 0-1 --out runs/images
    """
    from squareloss.lab import studies
    from squareloss.lab.studies import run

    if name == "list":
        typer.echo(run.listing(min(shutil.get_terminal_size((100, 24)).columns, 120)))
        return
    study = run.with_settings(studies.get(name), settings or [])
    folder = out or Path("runs") / f"{name}-{scale}"
    numbers = range(run.seeds_of(study, scale)) if seeds is None else run.parse_seeds(seeds)
    header = run.header_of(study, scale, numbers)
    options = run.Options(engine, workers, address, device, force, quiet, tensorboard)
    _end(run.carry_out(run.chosen(study, scale, cells), scale, numbers, header, folder, options))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A results folder, of compare or reproduce.", metavar="DIR")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="html (one page that needs nothing else), md, tex or csv. Default: as --output ends, else html.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="The file to write, - for standard output. Default: report.FORMAT in DIR.", show_default=False),
    ] = None,
) -> None:
    """Write the results of a folder as a page, or as tables for a paper. Trains nothing.

    It has a part for each study and each of its settings, the last first, and says in what they differ.
    """
    from squareloss.lab.report import write
    from squareloss.lab.runs.store import is_stream

    path = write(folder, kind, _place(output))
    if not is_stream(path):  # the report itself may have gone to /dev/stdout
        typer.echo(path)


Attacks = Annotated[
    str,
    typer.Option(
        help="pgd-LOSS and apgd-LOSS (LOSS such as ce, margin, angle), apgd-t, fab-t, square, autoattack, worst_case; with "
        "@eta behind it, an attack sees the estimated probabilities instead of the scores."
    ),
]
SplitSeed = Annotated[
    int,
    typer.Option(
        help="Draws a fifth of the data as test images, where they have no test set of their own: the seed that the "
        "classifier's training images were drawn with, or it is attacked on some of those."
    ),
]


@app.command()
def attack(
    directory: Annotated[Path, typer.Argument(help="A folder that Classifier.save wrote.", metavar="DIR")],
    data: Annotated[str, typer.Option(help="Images to attack: digits, cifar10, cifar100, an .npz or a folder.")] = "cifar10",
    eps: Annotated[str, typer.Option(help="Radii for images in [0, 1], as numbers or fractions.")] = "2/255,4/255,8/255",
    attacks: Attacks = "pgd-ce,autoattack,worst_case",
    norm: Annotated[str, typer.Option(help="linf or l2.")] = "linf",
    model: Annotated[
        str | None,
        typer.Option(
            help="package.module:function for a network of your own: function(shape, outputs) returns an nn.Module of "
            "the saved architecture. Built-in ones need none.",
            show_default=False,
        ),
    ] = None,
    size: Size = None,
    points: Annotated[int | None, typer.Option(help="Test images to attack. Default: all.", show_default=False)] = None,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(help="Of the attacks: their random starts and squares.")] = 0,
    split_seed: SplitSeed = 0,
    every: Annotated[
        bool, typer.Option("--all", help="Attack all images of such data: the classifier was trained on none of them.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The JSON file, replaced if it is there, - for standard output. Default: attack.json in DIR.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Attack a saved classifier and print what each attack leaves. Stopped, the same command goes on.

    Examples:

      squareloss attack runs/mynet --data cifar10 --eps 2/255,4/255,8/255

      squareloss attack runs/mynet --data photos/ --size 32 --model mynet:build --points 100
    """
    from squareloss.lab.attack import attack
    from squareloss.lab.runs.store import is_stream

    radii, names = _numbers("eps", eps) or [], [name.strip() for name in attacks.split(",")]
    path = _place(out) or directory / "attack.json"
    table = attack(
        directory, data, radii, attacks=names, norm=norm, model=model, size=size, points=points, device=device,
        seed=seed, split_seed=split_seed, every=every, out=path, root=data_dir, progress=not quiet,
    )  # fmt: skip
    typer.echo(table, err=is_stream(path))  # the file itself may have gone to /dev/stdout


def _numbers(name: str, text: str | None) -> list[float] | None:
    """Numbers and fractions, separated by commas: "0.1,2/255"."""
    from fractions import Fraction

    try:
        return None if text is None else [float(Fraction(part.strip())) for part in text.split(",")]
    except (ValueError, ArithmeticError) as error:  # 1/0, 1e999
        raise ValueError(
            f"expected --{name} to be numbers separated by commas, such as 0.1,0.3 or 1/255, got {text!r}"
        ) from error


def _place(path: Path | None) -> Path | None:
    """Where a file goes: "-" is standard output, as people expect of it."""
    return Path("/dev/stdout") if path == Path("-") else path


def _end(failed: int) -> None:
    if failed:
        raise typer.Exit(1)


def main() -> None:
    """Run the program; what the user can mend is one line on stderr and status 1, not a traceback."""
    from squareloss.lab.plain import harmless, plain_warnings

    plain_warnings()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a dash that the terminal does not know is no reason to end
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        if isinstance(error, ImportError) and error.name:
            raise  # the interpreter's own, which names a module; those that ask for a package to be installed name none
        typer.echo(f"squareloss: {harmless(str(error))}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
