"""The command line: demo, generate, bench, plugins and doctor; torch is imported only where a command needs it."""

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process."""
    from specdec.cli.app import app

    app()
