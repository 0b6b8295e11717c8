"""`topoalloc top`: what the containers of this node use of what they were granted, from the directories of shares."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from topoalloc.agent.config import Config
from topoalloc.agent.share_files import OWNERS, SHARES, read_list, read_shares, read_turn, share_names
from topoalloc.cli.usage_table import SharesSeen, usage_json, usage_table
from topoalloc.errors import InputError, MachineError
from topoalloc.sharing.share_owners import parse_owners
from topoalloc.sharing.share_sample import ShareSample, rates_of

INTERVAL_S = 1.0
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.1, 3600.0
_CLEAR = "\x1b[H\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run-dir", metavar="DIR", default=Config().run_dir, help="the agent's run_dir (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="print once, after one interval, and end")
    parser.add_argument("--as", dest="form", choices=("table", "json"), default="table", help="default: table")
    parser.add_argument(
        "--interval", metavar="SECONDS", type=float, default=INTERVAL_S, help="default: %(default)s; usage is over this"
    )


def run(args: argparse.Namespace) -> int:
    """Print until interrupted, or once; raises InputError and MachineError."""
    if not INTERVAL_MIN_S <= args.interval <= INTERVAL_MAX_S:
        raise InputError(f"--interval: from {INTERVAL_MIN_S} to {INTERVAL_MAX_S:.0f} seconds")
    before = _samples(args.run_dir)
    is_screen = sys.stdout.isatty() and args.form == "table" and not args.once
    while True:
        time.sleep(args.interval)
        now = _samples(args.run_dir)
        seen = SharesSeen(
            now,
            rates_of({sample.name: sample for sample in before}, now),
            parse_owners(read_list(args.run_dir, OWNERS)),
            {sample.name: turn for sample in now if (turn := read_turn(args.run_dir, sample.name)) is not None},
        )
        text = usage_json(seen) if args.form == "json" else usage_table(seen)
        sys.stdout.write((_CLEAR if is_screen else "") + text)
        sys.stdout.flush()
        if args.once:
            return 0
        before = now


def _samples(run_dir: str) -> tuple[ShareSample, ...]:
    try:
        return read_shares(run_dir, share_names(run_dir))
    except FileNotFoundError:
        raise InputError(f"{run_dir} does not exist; does the agent run on this node, with this run_dir?") from None
    except NotADirectoryError:
        raise InputError(_no_directory(run_dir)) from None
    except PermissionError:
        why = "" if os.geteuid() == 0 else "; run this as root"
        raise MachineError(f"{run_dir} may not be read{why}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{run_dir} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _no_directory(run_dir: str) -> str:
    """Links are not followed: whoever can change one would choose what is shown as the agent's."""
    path, target = Path(run_dir), os.path.realpath(run_dir)
    if not path.is_symlink():
        return f"{path / SHARES if path.is_dir() else path} is no directory; give the agent's run_dir"
    if not Path(target).is_dir():
        return f"{run_dir} is a link that leads to no directory; give the agent's run_dir"
    return f"{run_dir} is a link, and none is followed; give the directory itself: --run-dir {target}"
