"""The command line: parse, call, print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Train classifiers with square loss, and know what they do.", no_args_is_help=True, add_completion=False)
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


def main() -> None:
    """Run the program; what the user can mend is one line on stderr and status 1, not a traceback."""
    try:
        app()
    except (ValueError, OSError) as error:
        typer.echo(f"squareloss: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
