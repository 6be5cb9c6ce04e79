"""Arguments of each command. ``--help`` loads only this module."""

from __future__ import annotations

import argparse
import difflib
import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from .. import __version__
from ._errors import Misunderstood, print_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Attributes:
        name: its word on the command line, and the name of the module with its ``run``.
        summary: its purpose, in one line.
        about: its purpose, for its own help.
        examples: command lines with their purposes.
    """

    name: str
    summary: str
    about: str
    examples: tuple[tuple[str, str], ...]
    add: Callable[[argparse.ArgumentParser], None]


_PROGRAM: Final = "atomr-accel"

_EXIT_CODES: Final = """\
exit codes:
  0 done, and all is well    1 something is wrong    2 the words were not understood
  3 could not be done        130 Ctrl-C              141 the reader of the output has gone
"""


class _Parser(argparse.ArgumentParser):
    """Raises errors instead of exiting, and reports output that could not be printed."""

    def error(self, message: str) -> NoReturn:
        """Refuse the words."""
        raise Misunderstood(message, self.format_usage())

    def format_help(self) -> str:
        """Return the help; that of the command itself names the libraries."""
        text = super().format_help()
        if self.prog != _PROGRAM:
            return text
        from ..libraries.names import names

        rows = textwrap.wrap(", ".join(names()), 76)
        return "\n  ".join([f"{text}\nlibraries (see `{_PROGRAM} libraries`):", *rows]) + "\n"

    def _print_message(self, message: str, file: object = None) -> None:
        del file  # help and versions go to standard output, and nothing else comes here
        print_text(message)


def parser() -> argparse.ArgumentParser:
    """Return the parser of ``atomr-accel``; results have ``command``, ``json`` and ``schema``."""
    top = _Parser(
        prog=_PROGRAM,
        description="Look at devices, libraries and running programs of atomr_accel.",
        epilog="`atomr-accel COMMAND --help` has examples of each.\n\n" + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"atomr-accel {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.about,
            epilog=_examples(command.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
        sub.add_argument("--schema", action=_Schema, help="print the JSON Schema of that object")
        command.add(sub)
    return top


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command; without any word, print the help.

    Raises:
        SystemExit: a help, a version or a schema was printed.
    """
    top = parser()
    names = [command.name for command in COMMANDS]
    if words and not words[0].startswith("-") and words[0] not in names:
        near = difflib.get_close_matches(words[0], names, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise Misunderstood(
            f"there is no command {words[0]!r}; {meant}There are {', '.join(names)}",
            top.format_usage(),
        )
    return top.parse_args([*words] or ["--help"])


class _Schema(argparse.Action):
    """Like ``--help``: whatever else the command wants need not be there."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, help=help, default=False)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        del namespace, values, option_string
        from ._documents import schema

        print_text(schema(parser.prog.rpartition(" ")[2]))
        parser.exit()


def _examples(examples: Iterable[tuple[str, str]]) -> str:
    lines = [f"  {line}\n      {purpose}" for line, purpose in examples]
    return "examples:\n" + "\n".join(lines)


# --- kinds of words ------------------------------------------------------------------------


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"seconds must be above zero, not {text}")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def _index(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, but is {text}")
    return value


def _port(text: str) -> int:
    value = _index(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"must be at most 65535, but is {text}")
    return value


for _kind in (_seconds, _natural, _index, _port):
    _kind.__name__ = "number"  # argparse names it where text is no number at all


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", default="auto", metavar="NAME", help="auto (the default), cuda, cpu, ..."
    )
    parser.add_argument("--device", type=_index, default=0, metavar="N", help="which one; 0")
    _add_isolation(parser)


def _add_isolation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--isolation",
        choices=("process", "thread"),
        default="process",
        help="where the vendor's code runs; process",
    )


def _add_program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM", help="a script, as for python")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the program's own"
    )


# --- commands ------------------------------------------------------------------------------


def _probe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", default="all", metavar="NAME", help="all (the default), cuda, cpu, ..."
    )
    parser.add_argument(
        "--device", type=_index, action="append", metavar="N", help="only this one; repeatable"
    )
    _add_isolation(parser)
    parser.add_argument("--no-checks", action="store_true", help="compute nothing, only look")
    parser.add_argument(
        "--library", action="append", metavar="NAME", help="check only this one; repeatable"
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=120.0, help="a device may take this long; 120"
    )


def _nothing(_parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="a warning counts as wrong, too")


def _top(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", metavar="PID", type=_natural, help="which program")
    parser.add_argument("--once", action="store_true", help="look once, and end")
    parser.add_argument("--interval", type=_seconds, default=1.0, help="seconds between looks; 1")


def _bench(parser: argparse.ArgumentParser) -> None:
    _add_device(parser)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these measurements")
    parser.add_argument("--list", action="store_true", help="tell what can be measured")
    parser.add_argument("--repeats", type=_natural, default=7, help="times each is taken; 7")
    parser.add_argument("--quick", action="store_true", help="small sizes, also on a GPU")
    parser.add_argument(
        "--rivals",
        default="numpy,torch,cupy",
        help="comma-separated; those that are not installed are left out; numpy,torch,cupy",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw it, by matplotlib: .svg, .png, .pdf")


def _trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", default="run.pftrace", metavar="FILE", help="run.pftrace by default"
    )
    _add_program(parser)


def _explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a report, a log of JSON, or a journal")
    parser.add_argument(
        "-o", "--output", metavar="PROGRAM", help="of a journal: write the least program there"
    )


def _cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("list", "verify", "clear"), nargs="?", default="list", help="list"
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="only these; all by default")
    parser.add_argument("--damaged", action="store_true", help="clear only what is damaged")
    parser.add_argument("--dry-run", action="store_true", help="tell what clear would remove")


def _dashboard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 127.0.0.1")
    parser.add_argument("--port", type=_port, default=0, help="by default a free one")
    parser.add_argument(
        "--public", action="store_true", help="allow a host that other machines reach"
    )
    _add_program(parser)


def _stress(parser: argparse.ArgumentParser) -> None:
    _add_device(parser)
    parser.add_argument("--seconds", type=_seconds, default=10.0, help="how long; 10")
    parser.add_argument("--seed", type=_index, default=0, help="of data, faults and waits; 0")
    parser.add_argument("--clients", type=_natural, default=8, help="tasks that compute; 8")
    parser.add_argument(
        "--every", type=_seconds, default=1.0, metavar="SECONDS", help="mean between faults; 1"
    )
    parser.add_argument("--no-faults", action="store_true", help="load alone")
    parser.add_argument(
        "--standby", choices=("auto", "none", "warm", "hot", "parked"), default="auto", help="auto"
    )


def _node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program", nargs="?", metavar="MODULE:NAME", help="what the cluster declares"
    )
    parser.add_argument("--name", metavar="NODE", help="this node's name")
    parser.add_argument("--store", metavar="FILE", help="a file, or postgresql://host/database")
    parser.add_argument(
        "--certificates", default="certificates", metavar="FOLDER", help="certificates by default"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 127.0.0.1")
    parser.add_argument("--port", type=_port, default=0, help="by default a free one")
    parser.add_argument(
        "--make-certificates",
        action="append",
        metavar="NODE",
        help="write a node's certificate into the folder, and end; repeatable",
    )
    parser.add_argument("--days", type=_natural, default=365, help="until they expire; 365")


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", help="config.json, *.safetensors, tokenizer.json"
    )
    _add_device(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 127.0.0.1")
    parser.add_argument("--port", type=_port, default=8000, help="8000; 0 for a free one")
    parser.add_argument(
        "--model-name", metavar="NAME", help="what clients ask for; the folder's name by default"
    )
    parser.add_argument(
        "--api-key",
        action="append",
        metavar="[NAME=]KEY",
        help="a key that clients must have; repeatable, or in ATOMR_ACCEL_API_KEY",
    )
    parser.add_argument(
        "--public", action="store_true", help="allow a host that others reach without keys"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that requests may use, without keys; repeatable",
    )
    parser.add_argument(
        "--requests", type=_natural, default=1024, help="at a time, more get status 429; 1024"
    )
    parser.add_argument(
        "--grace", type=_seconds, default=30.0, help="seconds for streams after SIGTERM; 30"
    )
    parser.add_argument(
        "--durable",
        action="store_true",
        help="a cache that survives faults; a step takes longer",
    )
    parser.add_argument(
        "--standby",
        choices=("hot", "parked", "warm"),
        help="what is kept prepared for the next fault; a hot one is the quickest, and takes memory"
        " of the device",
    )
    parser.add_argument(
        "--demo-faults", action="store_true", help="a button on the page that faults the device"
    )


COMMANDS: Final = (
    Command(
        "probe",
        "what is installed, what is missing, and whether it computes right",
        "Look at drivers, devices and libraries, and compute something with each library on each "
        "device, compared with NumPy in double precision.",
        (
            ("atomr-accel probe", "everything; exits with 0 if all that is there works"),
            ("atomr-accel probe --backend cuda --device 0", "one GPU; 3 if it cannot be opened"),
            ("atomr-accel probe --no-checks --json", "versions, for a script"),
        ),
        _probe,
    ),
    Command(
        "libraries",
        "the libraries of devices, with the packages that bring them",
        "List the libraries that devices have, also those that other packages bring.",
        (("atomr-accel libraries", "names, purposes, lanes and backends"),),
        _nothing,
    ),
    Command(
        "doctor",
        "limits of this machine that will get in the way",
        "Look at limits and settings of this machine and process, and tell what to do about those "
        "that will get in the way.",
        (
            ("atomr-accel doctor", "what is not as it should be, and what to do"),
            ("atomr-accel doctor --strict", "for a container's build: warnings fail, too"),
        ),
        _doctor,
    ),
    Command(
        "top",
        "watch a running program",
        "Watch a program of this user that has a dashboard open: devices, lanes, actors and, "
        "where nvidia-ml-py is installed, what its GPUs say of themselves.",
        (
            ("atomr-accel top", "the only program, live, until Ctrl-C"),
            ("atomr-accel top 4711 --interval 5", "one of several, by its process"),
            ("atomr-accel top --once --json", "for a script"),
        ),
        _top,
    ),
    Command(
        "bench",
        "a few measurements beside what else is installed",
        "Measure a few things, beside NumPy, PyTorch and CuPy where these are installed. Each "
        "rival runs in a process of its own. Ratios are our time by theirs: below 1 is faster.",
        (
            ("atomr-accel bench", "all of them on device 0"),
            ("atomr-accel bench gemm ask --backend cpu", "two of them on the CPU"),
            ("atomr-accel bench --json > now.json", "to compare with another day"),
            ("atomr-accel bench --plot bench.svg", "a drawing"),
        ),
        _bench,
    ),
    Command(
        "trace",
        "run a program and write a timeline of its devices",
        "Run a Python program with a trace of each device that it opens, to be looked at with "
        "https://ui.perfetto.dev. It exits as the program does.",
        (
            ("atomr-accel trace script.py 10", "into run.pftrace"),
            ("atomr-accel trace -o serve.pftrace -m my.server --port 80", "a module"),
        ),
        _trace,
    ),
    Command(
        "explain",
        "the ops behind faults, from reports, a log or a journal",
        "Print the reports of faults in a file: one that FaultReport.to_json() has written, or a "
        "log of telemetry.JsonFormatter. Of a journal, find the least program that faults again, "
        "by running programs.",
        (
            ("atomr-accel explain server.log", "every fault that the log tells of"),
            ("atomr-accel explain run.journal -o least.py", "the calls that fault again"),
        ),
        _explain,
    ),
    Command(
        "cache",
        "list, verify or clear what is kept on disk",
        "Look at what is kept on disk so that it need not be made again. Clearing costs time at "
        "the next start, and nothing else.",
        (
            ("atomr-accel cache", "what there is, how large, and what it is for"),
            ("atomr-accel cache verify", "read all of it; 1 if something is damaged"),
            ("atomr-accel cache clear cubins", "remove compiled kernels"),
            ("atomr-accel cache clear --damaged", "remove only what is damaged"),
        ),
        _cache,
    ),
    Command(
        "dashboard",
        "run a program with a page that shows what it does",
        "Run a Python program with a dashboard open for each of its systems and devices. The "
        "addresses are printed to standard error. It exits as the program does.",
        (
            ("atomr-accel dashboard script.py", "on a free port of this machine"),
            ("atomr-accel dashboard --port 8080 -m my.server", "a module, on one port"),
        ),
        _dashboard,
    ),
    Command(
        "serve",
        "a language model behind OpenAI's API, until SIGTERM",
        "Serve the model of a folder as Hugging Face has them: chat completions, completions and "
        "models below /v1, a page to chat with, /live, /ready and /metrics. Streams go on after "
        "faults of the device; if it is lost, the command ends with 1.",
        (
            ("atomr-accel serve Llama-3.2-1B-Instruct", "on http://127.0.0.1:8000"),
            (
                "atomr-accel serve model --host 0.0.0.0 --api-key ann=sk-1 --api-key bob=sk-2",
                "for others, who get fair shares",
            ),
            ("atomr-accel serve model --backend cpu --demo-faults", "a demonstration"),
        ),
        _serve,
    ),
    Command(
        "node",
        "a node of a cluster, until SIGTERM",
        "Run a node that holds entities of a cluster. SIGTERM and Ctrl-C have it hand them over "
        "to other nodes, and end. MODULE has a ClusterProgram of that NAME.",
        (
            (
                "atomr-accel node --make-certificates node-1 --make-certificates node-2",
                "an authority and two certificates, in ./certificates",
            ),
            (
                "atomr-accel node chat:PROGRAM --name node-1 --store cluster.db",
                "a node, whose store is a file of this machine",
            ),
        ),
        _node,
    ),
    Command(
        "stress",
        "faults on a device under load, with data checked, and a verdict",
        "Compute on a device with several tasks, check every result, and break the device again "
        "and again: illegal addresses, asserts, killed hosts, kernels that hang. Other programs "
        "on the device are not touched.",
        (
            ("atomr-accel stress --seconds 60", "a minute on device 0"),
            ("atomr-accel stress --backend cpu --seed 7", "simulated faults, another order"),
            ("atomr-accel stress --no-faults --clients 64", "load alone"),
        ),
        _stress,
    ),
)
"""All commands, in the order of the help."""
