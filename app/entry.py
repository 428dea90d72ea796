"""Entry point of the `prep` console script."""

import signal


def main() -> None:
    """Run the command line. Until its modules are imported, Ctrl-C ends the process without a traceback."""
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from app.cli.main import main as run

    signal.signal(signal.SIGINT, interrupted)
    run()
