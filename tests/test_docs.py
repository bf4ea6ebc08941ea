"""What the texts say holds: their code runs, their commands and links exist; and the package's
modules import each other in one direction."""

import ast
import contextlib
import functools
import graphlib
import re
import shlex
import textwrap
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import load_module

from minifpt import cli, layers, trunks
from minifpt.experiments import compare
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
def test_the_code_runs_and_prints_what_the_text_shows(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace, outputs = {"__name__": "readme"}, shown_outputs(path)
    with patch.dict(layers.ACTIVATIONS):
        for block in code_blocks(path):
            exec(compile(block, path.name, "exec"), namespace)
            lines = iter(without_rounding(capsys.readouterr().out))
            for line in without_rounding(outputs.get(block, "")):
                assert line in lines, line                # in this order; a text may leave some out


def test_there_is_code_to_run():
    assert code_blocks(ROOT / "README.md") and code_blocks(ROOT / "docs" / "guide" / "code.md")
    assert shown_outputs(ROOT / "README.md") and shown_outputs(ROOT / "docs/guide/gradients.md")


@each_text
def test_the_commands_parse(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(path, tmp_path)
    for argv in commands(path):
        args = cli.parser(argv).parse_args(argv)          # exits where it is wrong
        for task in getattr(args, "tasks", []):
            compare.task_class(task)
        if args.run.__name__ in ("train", "compare", "summary", "plan"):
            for model in getattr(args, "models", None) or [args.model]:
                is_own = trunks.TrunkSpec.parse(model).kind == "own"
                assert trunks.get(model) if is_own else trunks.config_for(model, 0.0)
        masks = getattr(args, "freeze", "fpt")
        for mask in masks if isinstance(masks, list) else [masks]:
            FreezeMask.parse(mask)


def test_there_are_commands_to_parse():
    assert len(commands(ROOT / "docs" / "guide" / "commands.md")) >= 12
    assert sum(len(commands(path)) for path in (ROOT / "docs" / "results").glob("*.md")) >= 10


def test_a_command_that_is_none_is_seen(tmp_path):
    (tmp_path / "x.md").write_text("    pip install . && minifpt train bit-xor --stepz 3  # no\n")
    [argv] = commands(tmp_path / "x.md")
    assert argv == ["train", "bit-xor", "--stepz", "3"]
    with pytest.raises(SystemExit), contextlib.redirect_stderr(None):
        cli.parser(argv).parse_args(argv)


@each_text
def test_benchmarks_that_are_named_exist(path):
    for name in re.findall(r"python -m benchmarks\.(\w+)", path.read_text(encoding="utf-8")):
        assert (ROOT / "benchmarks" / f"{name}.py").exists()


# ------------------------------------------------------------------------- links, installing


def anchors(path):
    """What ``#...`` may stand behind a link to a text, as GitHub makes it from the headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


@each_text
def test_links_point_to_something(path):
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
    packages = {".".join(p.parent.relative_to(ROOT).parts)
                for p in ROOT.glob("minifpt/**/__init__.py")}
    assert all(f'"{package}"' in setup for package in packages)


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


def test_imports_point_one_way():
    known = modules()
    graph = {name: imports(name, path, known) for name, path in known.items()}
    assert "minifpt.fast" in graph["minifpt.layers"]
    assert "minifpt.functional" in graph["minifpt.fast"]
    assert all(target in known for targets in graph.values() for target in targets)
    assert graph["minifpt.functional"] == {"minifpt.guards"}
    assert graph["minifpt.guards"] == set()
    assert [name for name in graph if "minifpt.cli" in graph[name]] == ["minifpt.__main__"]
    graphlib.TopologicalSorter(graph).prepare()           # a CycleError names the cycle


# -------------------------------------------------------------------------------- results


@functools.cache
def results_module():
    return load_module(ROOT / "benchmarks" / "results.py")


def test_results_say_what_the_runs_say():
    results = results_module()
    assert results.problems() == []
    marks = 0
    for path in results.TEXTS:                            # a changed cell of a table is found
        text = changed = path.read_text(encoding="utf-8")
        for mark in results.MARK.finditer(text):
            row = text[mark.end():].strip().splitlines()[2]
            changed = changed.replace(row, row.translate(str.maketrans("123456789", "234567891")))
            marks += 1
        assert results.with_tables(changed) == text
    assert marks > 25
    lines = results.problems([path for path in results.TEXTS if path.name != "listops.md"])
    assert "no text has a table or a claim of listops-early.csv" in lines
    assert any(line.startswith("no text has the claim listops-paper-lstm: Our") for line in lines)


def test_a_csv_of_other_columns_becomes_a_table(tmp_path, monkeypatch):
    results = results_module()
    monkeypatch.setattr(results, "RUNS", tmp_path)
    (tmp_path / "own.csv").write_text("trunk,steps\nrandom,600\n", encoding="utf-8")
    want = "<!-- own.csv -->\n\n| trunk | steps |\n|---|---|\n| random | 600 |\n\nText.\n"
    assert results.with_tables("<!-- own.csv -->\n\nText.\n") == want == results.with_tables(want)
    (tmp_path / "own.csv").write_text("trunk,seed,right,curve\na,0,1.0,.10 .20\na,1,2.0,.30 .40\n")
    assert "| a | 1.5 (1.0…2.0) | 0.20 0.30 |\n" in results.with_tables("<!-- own.csv: means -->\n")


@pytest.mark.parametrize(("file", "was", "now"), [
    ("README.md", "reach 99.7 %", "reach 99.6 %"), ("README.md", "novels 98.8", "novels 98.9"),
    ("README.md", "has 75.8 %", "has 75.9 %"), ("README.md", "1,575 at", "1,600 at"),
    ("README.md", "25 steps", "20 steps"), ("README.md", "4,812 at", "4,800 at"),
    ("RESULTS.md", "81.4 %", "81.5 %"), ("RESULTS.md", "3,000 and", "3,100 and"),
    ("RESULTS.md", "against 35.7", "against 36.7"), ("RESULTS.md", "above, 62.0", "above, 63.0"),
    ("RESULTS.md", "at 3e-4 to", "at 1e-4 to"), ("RESULTS.md", "60.4 %", "61.4 %"),
    ("docs/results/why.md", "2,662 steps", "2,700 steps"),
    ("docs/results/whole.md", "(2.6 to", "(3.7 to"),
    ("docs/results/scale.md", "8,300 steps", "8,400 steps"),
    ("docs/results/images.md", "1,500 and 2,500", "1,500 and 2,700"),
    ("docs/results/language.md", "| random | 100.0", "| random | 100.1"),
    ("docs/results/why.md", "130 to 210", "150 to 210"),
    ("docs/performance.md", "20 to 45 %", "20 to 50 %"),
    ("docs/guide/change.md", "76.7 %", "78.7 %"), ("docs/guide/gradients.md", "| 45 |", "| 46 |"),
    ("lessons/claims.md", "82 to 84 and 98 %", "92 to 94 and 98 %"),
    ("lessons/claims.md", "300 steps of 4", "350 steps of 4"),
    ("minifpt/viewer/tour.md", "375 at", "385 at"), ("minifpt/viewer/tour.md", "38.0 %", "39 %")])
def test_a_number_that_is_changed_by_hand_is_found(file, was, now):
    results, text = results_module(), (ROOT / file).read_text(encoding="utf-8")
    assert was in text
    lines = results.text_problems(file, text.replace(was, now, 1), results.phrases()[1])
    assert [line for line in lines if line.startswith(file)]


def test_a_claim_has_a_run_for_each_of_its_places():
    with pytest.raises(ValueError, match="1 places and 0 runs"):
        results_module().claims.fill("It has {} %.", [])


def test_every_picture_of_the_results_is_drawn_and_shown(tmp_path, monkeypatch):
    results, drawn = results_module(), set()              # of names: a drawing takes seconds
    for module, name, place in ((results, "dots", 1), (results.tables, "picture", 1),
                                (results.memory_map, "picture", 1), (results.why, "picture", 1),
                                (results.tables, "sweep_picture", 1)):
        monkeypatch.setattr(module, name, lambda *args, place=place, **_: drawn.add(args[place]))
    results.pictures()
    assert len(drawn) == 8 and all(path.stat().st_size > 10_000 for path in drawn)
    shown = {(path.parent / target).resolve() for path in TEXTS
             for target in re.findall(r"\]\(([^)\s]+\.png)\)", path.read_text(encoding="utf-8"))}
    assert {path.resolve() for path in drawn} <= shown
