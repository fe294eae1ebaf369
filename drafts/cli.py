"""The console script `circuit`."""

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def options() -> None:
    """Declare, check and run speculative drafters as circuits."""


def main() -> None:
    """Run the console script."""
    app()
