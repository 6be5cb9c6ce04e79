"""What can be done with this repository, one session each.

``python3 noxfile.py tests`` needs Python 3.11 and nothing else: where nox is missing, it is put
into ``.nox/bootstrap`` first. Words after the session go to its program, as in
``python3 noxfile.py tests -k gemm``. With nox installed, ``nox -s tests -- -k gemm`` is the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent


def _bootstrap() -> NoReturn:
    """Run this file again in ``.nox/bootstrap``, a private virtual environment that has nox.

    It is made with the standard library and pip alone, so that it works where the system's
    Python refuses installs and where Debian has left ``ensurepip`` out.
    """
    env = ROOT / ".nox" / "bootstrap"
    python = str(env / "bin" / "python")
    if sys.version_info < (3, 11):  # noqa: UP036 - the message for whoever starts it with an older one
        sys.exit(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}.")
    if Path(sys.prefix) == env:
        sys.exit(f"nox in {env} is too old or broken: delete that folder and run this again.")
    if not _has_nox(python):
        if has_ensurepip := find_spec("ensurepip") is not None:
            pip = [python, "-m", "pip"]
        elif find_spec("pip") is not None:
            pip = [sys.executable, "-m", "pip", "--python", python]
        else:
            sys.exit(
                "This Python has neither ensurepip nor pip, so nox cannot be installed.\n"
                "On Debian and Ubuntu: sudo apt install python3-venv\n"
                "On Fedora: sudo dnf install python3-pip"
            )
        print(f"Installing nox into {env.relative_to(ROOT)}", file=sys.stderr)
        options = ["--clear"] if has_ensurepip else ["--clear", "--without-pip"]
        try:
            subprocess.run([sys.executable, "-m", "venv", *options, str(env)], check=True)
            subprocess.run([*pip, "install", "--quiet", "nox"], check=True)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{error}\nWith nox from elsewhere: nox -f {Path(__file__).name}")
    os.execv(python, [python, *sys.argv])


def _has_nox(python: str) -> bool:
    """Whether an interpreter is there and has a nox that is new enough."""
    probe = [python, "-c", "from nox.project import dependency_groups"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


try:
    import nox
    from nox import registry
    from nox.project import dependency_groups, load_toml
except ImportError:
    if __name__ != "__main__":
        raise
    _bootstrap()

PYPROJECT = load_toml(ROOT / "pyproject.toml")

ARRAY_API_SUITE = "https://github.com/data-apis/array-api-tests"
ARRAY_API_COMMIT = "55fcc60179efa2680ddd6cd926ddf17b83530e2b"

NUMPY_SUITES = {
    "numpy.lib.tests.test_arraysetops": "",
    "numpy.lib.tests.test_arraypad": "",
    "numpy.lib.tests.test_function_base": "",
    "numpy.lib.tests.test_histograms": "",
    "numpy.lib.tests.test_index_tricks": "",
    "numpy.lib.tests.test_nanfunctions": "",
    "numpy.lib.tests.test_shape_base": "",
    "numpy.lib.tests.test_twodim_base": "",
    "numpy._core.tests.test_einsum": "",
    "numpy._core.tests.test_numeric": "",
    "numpy._core.tests.test_shape_base": "",
    "numpy.linalg.tests.test_linalg": "",
    "scipy.linalg.tests.test_basic": "TestSolveTriangular or TestInv or TestDet",
    "scipy.linalg.tests.test_decomp": "TestSVD or TestSVDVals or TestEigh",
    "scipy.linalg.tests.test_decomp_cholesky": "TestCholesky or TestChoSolve",
    "scipy.linalg.tests.test_decomp_ldl": "",
    "scipy.linalg.tests.test_decomp_lu": "TestLUFactor or TestLUSolve",
    "scipy.linalg.tests.test_decomp_polar": "",
    "scipy.linalg.tests.test_matfuncs": "TestExpM and not ConditionNumber",
}
"""Other people's tests of what devices have, and which of them."""

GPU_SUITES = {
    "cublas": ("blas", "blaslt"),
    "cublaslt": ("blaslt",),
    "cudnn": ("dnn", "flash_attention"),
    "cudss": ("sparse",),
    "cufft": ("fft",),
    "curand": ("rng",),
    "cusolver": ("linalg",),
    "cusparse": ("sparse",),
    "cusparselt": ("sparselt",),
    "cutensor": ("tensor",),
}
"""Folders of tests by the vendor's names; other libraries have their own names there."""

for _folder in sorted(
    Path.home().glob(".pyenv/versions/3.*/bin")
):  # pyenv's own commands may refuse
    os.environ["PATH"] += f"{os.pathsep}{_folder}"

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests", "slow", "lint", "types", "docs"]


@nox.session
def demo(session: nox.Session) -> None:
    """Run the quickstart on whatever this machine has."""
    _install(session, "-e", ".")
    _python(session, "examples/quickstart.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests on the CPU backend, on all cores; ``tests -n 0`` in one process.

    Those that are not slow: ``slow`` is for the others. Without the vendor's wheels, which are
    large: ``headers`` is for those.
    """
    _run_tests(session, marked="not slow and not headers and not style")


@nox.session
def slow(session: nox.Session) -> None:
    """Run the tests that take about a second or more, those that are long by nature by samples.

    Examples and the code in pages are among them. Many wait for processes, so there is one worker
    more than there are cores.
    """
    workers = str((os.cpu_count() or 1) + 1)
    marked = "slow and not headers and not style"
    longest = ("--durations", "40", "--durations-min", "8")
    _run_tests(session, marked=marked, words=longest, PYTEST_XDIST_AUTO_NUM_WORKERS=workers)


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def pythons(session: nox.Session) -> None:
    """Run the tests by each supported release of Python that is there; ``pythons-3.13`` by one."""
    _run_tests(session, marked="not headers and not style")


@nox.session
def full(session: nox.Session) -> None:
    """Run the tests that are slow in full: every step, line and example; ``full -k ctrl_c``.

    Some of these the session ``slow`` takes by a sample: every fourth line, fewer examples.
    """
    _run_tests(session, marked="slow and not headers and not style", ATOMR_TEST_FULL="1")


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the same tests in one process; fail if their branch coverage is below the floor.

    The floor is ``fail_under`` in ``pyproject.toml``. It holds for all tests: words such as
    ``-k gemm`` make the session fail for what they leave out.

    Coverage starts before pytest does: the package brings a pytest plugin, so pytest imports it
    long before pytest-cov would begin to look.
    """
    _install(session, "-e", ".", *dependency_groups(PYPROJECT, "test"))
    pytest = ("-m", "pytest", "-m", "not headers and not style", *session.posargs)
    _python(session, "-m", "coverage", "run", *pytest, env={"ATOMR_TEST_BACKEND": "cpu"})
    _python(session, "-m", "coverage", "report")


@nox.session
def gpu(session: nox.Session) -> None:
    """Run the tests that need a CUDA device; ``--no-venv`` takes this interpreter as it is.

    ``gpu cublas fft`` runs those of these libraries, by the vendor's names or our own; other words
    go to pytest. Without words, random cases of every library and ten minutes of faults under load
    come next. All extras of CUDA 12 are installed, or of CUDA 13 with ``CUDA=13`` in the
    environment.
    """
    extras = f".[all{os.environ.get('CUDA', '12')}]"
    _install(session, "-e", extras, *dependency_groups(PYPROJECT, "test"))
    chosen = [each for word in session.posargs for each in _suite(word)]
    pytest = ("-m", "pytest", "-m", "gpu", *chosen)
    _python(session, *pytest, env={"ATOMR_TEST_BACKEND": "cuda"})
    if not session.posargs:
        words = ("--backend", "cuda", "--cases", "20000")
        _python(session, "-m", "tests.differential", *words)
        _python(session, "-m", "tests.soak.faults", "--backend", "cuda", "--seconds", "600")


def _suite(word: str) -> tuple[str, ...]:
    """Return the folders of tests of a library, or a word that names none as it is."""
    folders = GPU_SUITES.get(word.lower(), (word.lower(),))
    found = [f"tests/libraries/{folder}" for folder in folders]
    return tuple(found) if all((ROOT / folder).is_dir() for folder in found) else (word,)


@nox.session
def headers(session: nox.Session) -> None:
    """Run the tests where the vendor's wheels are: headers and NVRTC, but no GPU needed.

    All of them, since some check more once ``cuda-bindings`` is there; ``headers -m headers``
    is just prototypes and kernels.
    """
    wheels = ("-e", ".[cuda12]", *dependency_groups(PYPROJECT, "headers"))
    _run_tests(session, *wheels)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks, every one or those named, as in ``bench ask gemm "gaps --two"``.

    ``bench --compare ask`` prints each figure beside the one that was recorded on the same card,
    and fails if one is worse by more than 3 %; ``--record`` records them.
    """
    _install(session, "-e", ".", *dependency_groups(PYPROJECT, "bench"))
    there = {path.stem: path for path in sorted((ROOT / "tests/benchmarks").glob("bench_*.py"))}
    options = [word for word in session.posargs if word.startswith("-")]
    words = [word for word in session.posargs if word not in options]
    wanted = ["bench_" + Path(word).stem.removeprefix("bench_") for word in words]
    if unknown := [stem for stem in wanted if stem.split()[0] not in there]:
        session.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(there)}")
    if options:
        recorded = ("-m", "tests.benchmarks.recorded", *options)
        _python(session, *recorded, *(wanted or there))
        return
    for benchmark in wanted or there:
        stem, *given = benchmark.split()
        _python(session, str(there[stem].relative_to(ROOT)), *given)


@nox.session
def array_api(session: nox.Session) -> None:
    """Run the Array API standard's own tests; ``array_api --max-examples 1000`` takes longer.

    They are fetched with git, once. What is left out, and why, is told in
    ``tests/array_api/skips.txt``.
    """
    _install(session, "-e", ".", *dependency_groups(PYPROJECT, "test", "array-api"))
    suite = ROOT / ".nox" / "array-api-tests"
    if not suite.exists():
        session.run("git", "clone", "-q", ARRAY_API_SUITE, str(suite), external=True)
    session.run("git", "-C", str(suite), "checkout", "-q", ARRAY_API_COMMIT, external=True)
    update = ("submodule", "update", "-q", "--init")
    session.run("git", "-C", str(suite), *update, external=True)
    skips = str(ROOT / "tests" / "array_api" / "skips.txt")
    options = ("--disable-deadline", f"--skips-file={skips}", *session.posargs)
    names = {"ARRAY_API_TESTS_MODULE": "tests.array_api", "PYTHONPATH": str(ROOT)}
    with session.chdir(suite):
        _python(session, "-m", "pytest", "array_api_tests", "-q", *options, env=names)


@nox.session
def numpy_suites(session: nox.Session) -> None:
    """Run NumPy's and SciPy's own tests of what devices have; words go to pytest.

    What is left out, and why, is told in ``tests/numpy_suites/skips.txt``.
    """
    _install(session, "-e", ".", *dependency_groups(PYPROJECT, "test"))
    options = ("-p", "tests.numpy_suites.plugin", "--noconftest", "--import-mode=prepend")
    quiet = ("-c", os.devnull, "-p", "no:cacheprovider", "-W", "ignore", "-q")
    env = {"ATOMR_TEST_BACKEND": "cpu", "PYTHONPATH": str(ROOT)}
    for module, words in NUMPY_SUITES.items():
        chosen = ("-k", words) if words else ()
        pytest = ("-m", "pytest", *options, *quiet, *chosen, "--pyargs", module)
        _python(session, *pytest, *session.posargs, env=env)


@nox.session
def scipy_fft(session: nox.Session) -> None:
    """Run SciPy's own tests of ``scipy.fft`` on ``device.fft``; words go to pytest.

    What is left out, and why, is told in ``tests/scipy_fft/skips.txt``.
    """
    _install(session, "-e", ".", *dependency_groups(PYPROJECT, "test"))
    plugins = ("-p", "scipy.conftest", "-p", "tests.scipy_fft.plugin", "--noconftest")
    quiet = ("-c", os.devnull, "-p", "no:cacheprovider", "-W", "ignore", "-q")
    modules = ("scipy.fft.tests.test_basic", "scipy.fft.tests.test_real_transforms")
    pytest = ("-m", "pytest", *plugins, *quiet, "--pyargs", *modules, *session.posargs)
    _python(session, *pytest, env={"ATOMR_TEST_BACKEND": "cpu", "PYTHONPATH": str(ROOT)})


@nox.session
def onnx_nodes(session: nox.Session) -> None:
    """Run onnx's own tests of nodes on ``device.engine``: those of a word, as ``conv``, or all."""
    _install(session, "-e", ".", *dependency_groups(PYPROJECT, "test"))
    _python(session, "-m", "tests.onnx_nodes", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Kill hosts 5,000 times under load; words go on, as in ``soak --kills 100``.

    ``python -m tests.soak.faults --seconds 600`` ends contexts by faults of every kind, too, and
    ``python -m tests.soak.reports`` looks at the reports of faults.
    """
    _install(session, "-e", ".")
    for isolation in ("process", "thread"):
        words = ("--isolation", isolation, *session.posargs)
        _python(session, "-m", "tests.soak.kills", *words)


@nox.session
def differential(session: nox.Session) -> None:
    """Compare random calls of every library with NumPy, SciPy and torch, on the CPU backend.

    Words go on, as in ``differential array fft --cases 20000 --seed 7``, and choose another
    backend, too: ``--backend cuda``. The session ``gpu`` does that with 20,000 cases of each.
    """
    _install(session, "-e", ".", *dependency_groups(PYPROJECT, "test"))
    _python(session, "-m", "tests.differential", "--backend", "cpu", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff, which way imports go, and what files and pages say.

    Imports are checked by import-linter, the rest by the tests that are marked ``style``.
    """
    _install(session, "-e", ".", *dependency_groups(PYPROJECT, "lint", "test"))
    _python(session, "-m", "ruff", "check", *session.posargs)
    _python(session, "-m", "ruff", "format", "--check")
    imports = "from importlinter.cli import lint_imports_command as main; main()"
    _python(session, "-c", imports, "--no-logo", "--no-cache")
    pytest = ("-m", "pytest", "-q", "-m", "style", "-n", "auto", "--dist", "worksteal")
    _python(session, *pytest, env={"ATOMR_TEST_BACKEND": "cpu"})


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy, strictly: the package, its tests, its examples and this file."""
    _install(session, "-e", ".", *dependency_groups(PYPROJECT, "types"))
    _python(session, "-m", "mypy", *session.posargs)


@nox.session
def verifytypes(session: nox.Session) -> None:
    """Check with pyright that every public type is known; less than 100 % is a failure.

    Not among what every change has to pass: pyright is a program for Node.js, which it fetches.
    """
    _install(session, "-e", ".", *dependency_groups(PYPROJECT, "pyright"))
    pyright = ("-m", "pyright", "--verifytypes", "atomr_accel", "--ignoreexternal")
    _python(session, *pyright, *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into ``.site/html``; warnings are errors. It needs no network."""
    _install(session, "-e", ".", *dependency_groups(PYPROJECT, "docs"))
    options = ("-W", "--keep-going", "-q", "-j", "auto", "-d", ".site/doctrees", *session.posargs)
    _python(session, "-m", "sphinx", *options, "docs", ".site/html")
    session.log(f"the site is {(ROOT / '.site' / 'html' / 'index.html').as_uri()}")


@nox.session
def changelog(session: nox.Session) -> None:
    """Show what CHANGELOG.md would gain; ``changelog build --version 0.2.0`` writes it."""
    _install(session, *dependency_groups(PYPROJECT, "changelog"))
    words = session.posargs or ("build", "--draft", "--version", "next")
    _python(session, "-m", "towncrier", *words)


@nox.session
def build(session: nox.Session) -> None:
    """Build the last commit into ``dist``, check both files, install and try the wheel.

    Two builds are identical. In an empty environment the wheel is installed, tried, upgraded to
    and uninstalled, with a sample of fast tests; words are Pythons: ``build 3.11 3.13``.
    """
    _install(session, *dependency_groups(PYPROJECT, "build"))
    _python(session, "-m", "tests.packages.build", "dist")
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "dist").iterdir())]
    _python(session, "-m", "twine", "check", "--strict", *files)
    wheels = [each for each in files if each.endswith(".whl")]
    _python(session, "-m", "check_wheel_contents", *wheels)
    _python(session, "-m", "tests.packages.acceptance", "dist", "--tests", *session.posargs)


@nox.session
def release(session: nox.Session) -> None:
    """Commit and tag a version: ``release 0.2.0``. Nothing is pushed.

    Sets ``__version__``, and moves the notes in ``changes`` to CHANGELOG.md.
    """
    version = session.posargs[0] if len(session.posargs) == 1 else ""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        session.error(f"one version must follow, such as 0.2.0, not {session.posargs}")
    if _git("status", "--porcelain"):
        session.error("everything must be committed before a release")
    if f"v{version}" in _git("tag").split():
        session.error(f"v{version} is there already")
    start = ROOT / "atomr_accel" / "__init__.py"
    text = start.read_text(encoding="utf-8")
    changed, count = re.subn(r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"', text)
    if count != 1:
        session.error(f"{start.name} must state the version once, not {count} times")
    _install(session, *dependency_groups(PYPROJECT, "changelog"))
    start.write_text(changed, encoding="utf-8")
    _python(session, "-m", "towncrier", "build", "--yes", "--version", version)
    _git("add", "--all", "CHANGELOG.md", "changes", str(start))
    _git("commit", "--quiet", "--message", f"Release {version}")
    _git("tag", "--annotate", f"v{version}", "--message", f"Release {version}")
    session.log(f"to publish: git push origin HEAD v{version}")


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True
    ).stdout


@nox.session
def workflows(session: nox.Session) -> None:
    """Check the workflows in ``.github`` with actionlint and zizmor."""
    _install(session, *dependency_groups(PYPROJECT, "workflows"))
    files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(".github/workflows/*.yml"))
    session.run("actionlint", *files)
    session.run("zizmor", "--offline", "--pedantic", *files)


@nox.session
def containers(session: nox.Session) -> None:
    """Check the container file with hadolint, and the manifests against Kubernetes' schema."""
    _install(session, *dependency_groups(PYPROJECT, "containers"))
    folder = Path("examples/container")
    session.run("hadolint", str(folder / "Dockerfile"))
    manifests = sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.yaml"))
    session.run("kubernetes-validate", "--strict", *manifests)


def _run_tests(
    session: nox.Session,
    *packages: str,
    marked: str = "",
    words: tuple[str, ...] = (),
    **env: str,
) -> None:
    """Run the tests of some marks on the CPU backend, on all cores.

    Bytecode is kept even where the environment says otherwise: without it each worker rewrites the
    asserts of all tests, and each host of a device compiles the package again.
    """
    _install(session, *(packages or ("-e", ".")), *dependency_groups(PYPROJECT, "test"))
    chosen = ("-m", marked) if marked else ()
    pytest = ("-m", "pytest", *chosen, "-n", "auto", "--dist", "worksteal")
    kept = {"ATOMR_TEST_BACKEND": "cpu", "PYTHONDONTWRITEBYTECODE": ""}
    _python(session, *pytest, *words, *session.posargs, env={**kept, **env})


def _install(session: nox.Session, *requirements: str) -> None:
    """Install into the session's environment; without one, what is there has to do."""
    if session.venv_backend != "none":
        session.install(*requirements)


def _python(session: nox.Session, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Run the session's Python, or with ``--no-venv`` the one that runs nox."""
    if session.venv_backend == "none":
        session.run(sys.executable, *arguments, env=env, external=True)
    else:
        session.run("python", *arguments, env=env)


def _command_line(words: list[str]) -> list[str]:
    """Translate ``[options] [session ...] [arguments ...]`` into what nox understands."""
    names = registry.get()
    start = next((at for at, word in enumerate(words) if word in names), len(words))
    if start == len(words) or {"-s", "-e", "--session", "--sessions"} & {*words[:start]}:
        return words
    end = next((at for at in range(start, len(words)) if words[at] not in names), len(words))
    arguments = words[end + 1 :] if words[end : end + 1] == ["--"] else words[end:]
    return [*words[:start], "--sessions", *words[start:end], "--", *arguments]


if __name__ == "__main__":
    sys.argv[1:] = ["--noxfile", __file__, *_command_line(sys.argv[1:])]
    nox.main()
