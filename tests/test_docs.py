"""What the texts say holds: their code runs, their commands and links exist; and the package's
modules import each other in one direction."""

import ast
import graphlib
import re
import shlex
import textwrap
from pathlib import Path
from unittest.mock import patch

import pytest

from minifpt import cli, layers, tasks, trunks
from minifpt.freeze import FreezeMask

ROOT = Path(__file__).resolve().parent.parent
TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("[!.]*/README.md"), *ROOT.glob("docs/**/*.md")])
pytestmark = pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="there is no checkout")
each_text = pytest.mark.parametrize("path", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))


def code_blocks(path):
    """The Python code blocks of a text."""
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```", path.read_text(encoding="utf-8"),
                        re.M | re.S)
    return [textwrap.dedent(block) for _, block in blocks]


def shown_outputs(path):
    """{code block: the text that stands below it as what it prints}."""
    return dict(re.findall(r"^```python\n((?:(?!```).*\n)*)```\n\n((?:    (?!minifpt ).+\n)+)",
                           path.read_text(encoding="utf-8"), re.M))


def without_rounding(text):
    """The lines of a text, with what another processor may compute otherwise left out."""
    text = re.sub(r"\d\.\d\de-(0[7-9]|1\d)|0\.00e\+00", "(rounding)", text)
    text = re.sub(r"\d+\.\d{6,}", lambda number: f"{float(number[0]):.5g}", text)
    return [line.strip() for line in text.strip().splitlines()]


def write_files(path, folder):
    """Write each code block whose first line is ``# NAME.py`` to that file."""
    for block in code_blocks(path):
        if name := re.match(r"# (\w+\.py)\n", block):
            (folder / name[1]).write_text(block, encoding="utf-8")


def commands(path):
    """The calls of ``minifpt`` in a text's code blocks, as lists of arguments."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S))
    indented = "\n".join(re.findall(r"^    (.*)$", text, re.M))
    calls = re.findall(r"^(?:.*&& )?minifpt +(\S.*)$", f"{fenced}\n{indented}", re.M)
    return [shlex.split(call, comments=True) for call in calls]


# ------------------------------------------------------------------------- code, commands


@pytest.mark.parametrize("path", [path for path in TEXTS if code_blocks(path)],
                         ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_runs_and_prints_what_the_text_shows(path, cwd, capsys):
    namespace, outputs = {"__name__": "readme"}, shown_outputs(path)
    with patch.dict(layers.ACTIVATIONS):
        for block in code_blocks(path):
            short = re.sub(r"\bsteps=\d{3,}", "steps=20", block)          # of a training
            exec(compile(short, path.name, "exec"), namespace)
            lines = iter(without_rounding(capsys.readouterr().out))
            for line in without_rounding(outputs.get(block, "")):
                assert line in lines, line                # in this order; a text may leave some out


@each_text
def test_the_commands_parse(path, cwd):
    for text in [*TEXTS, path]:                           # one may use a file of another's
        write_files(text, cwd)
    for argv in commands(path):
        args = cli.parser(argv).parse_args(argv)          # exits where it is wrong
        for task in getattr(args, "tasks", []):
            tasks.task_class(task)
        if args.run.__name__ in ("train", "compare", "summary"):
            for model in getattr(args, "models", None) or [getattr(args, "model", "random")]:
                assert trunks.TrunkSpec.parse(model).kind != "own" or trunks.get(model)
        masks = getattr(args, "freeze", None) or "fpt"
        for mask in masks if isinstance(masks, list) else [masks]:
            FreezeMask.parse(mask)


def test_there_is_code_and_there_are_commands():
    assert code_blocks(ROOT / "README.md") and code_blocks(ROOT / "docs" / "guide" / "code.md")
    assert shown_outputs(ROOT / "README.md") and shown_outputs(ROOT / "docs/guide/gradients.md")
    assert len(commands(ROOT / "docs" / "guide" / "commands.md")) >= 12
    assert sum(len(commands(path)) for path in (ROOT / "docs" / "results").glob("*.md")) >= 10


# ------------------------------------------------------------------------- links, installing


def anchors(path):
    """What ``#...`` may stand behind a link to a text, as GitHub makes it from the headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


@each_text
def test_links_and_names_of_programs_point_to_something(path):
    for folder, name in re.findall(r"python -m (benchmarks|studies)\.(\w+)",
                                   path.read_text(encoding="utf-8")):
        assert (ROOT / folder / f"{name}.py").exists()
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        to = path.parent / file if file else path
        assert to.exists(), target
        assert not anchor or anchor in anchors(to), target


def test_what_is_installed_is_there():
    """Install lines work from a clone: no index has to have minifpt, and every extra exists."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    files = [*TEXTS, *ROOT.glob("minifpt/**/*.py"), *ROOT.glob("lessons/src/*.py"),
             ROOT / "lessons" / "build.py"]
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"""pip install [^\n&]*minifpt""", text), file
        for extras in re.findall(r"pip install [^\n]*\.\[([\w,]+)\]", text):
            assert all(f'"{extra}": [' in setup for extra in extras.split(",")), file
    packages = {".".join(p.parent.relative_to(ROOT / "minifpt").parts)
                for p in ROOT.glob("minifpt/*/**/__init__.py")}
    assert packages and all(f'"{package}"' in setup for package in packages)


# -------------------------------------------------------------------------------- imports


def modules():
    """{dotted name: path} of every module of the package."""
    paths = {}
    for path in sorted(ROOT.glob("minifpt/**/*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports(name, path, known):
    """The modules of ours that a module imports, wherever in it that happens."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[:len(package.split(".")) - node.level + 1]
            base = ".".join([*(up if node.level else []), *filter(None, [node.module])])
            for alias in node.names:                      # a module of that package, or a name
                inner = f"{base}.{alias.name}"
                names.add(inner if inner in known else base)
    return {module for module in names if module.split(".")[0] == "minifpt"} - {name}


FLOORS = 11                                               # of imports; fewer are better
ROOF = {"minifpt", "minifpt.__main__"}                    # their imports wait until they are needed


def test_imports_point_one_way():
    known = modules()
    graph = {name: imports(name, path, known) for name, path in known.items()}
    assert "minifpt.fast" in graph["minifpt.layers"]
    assert "minifpt.functional" in graph["minifpt.fast"]
    assert all(target in known for targets in graph.values() for target in targets)
    assert graph["minifpt.functional"] == {"minifpt.guards"}
    assert graph["minifpt.guards"] == set()
    assert [name for name in graph if "minifpt.cli" in graph[name]] == ["minifpt.__main__"]
    floors = {}
    for name in graphlib.TopologicalSorter(graph).static_order():     # a CycleError names the cycle
        floors[name] = 1 + max((floors[target] for target in graph[name] - ROOF), default=0)
    assert max(floors[name] for name in graph.keys() - ROOF) == FLOORS, floors
