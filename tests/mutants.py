"""Mutants of the lessons' solutions: does each exercise's check refuse them?

    python tests/mutants.py               # all solutions, 20 seeds; some minutes
    python tests/mutants.py 03 05         # those of these lessons
    python tests/mutants.py --seeds 200 copy_share

A mutant is a solution with one small mistake: a term or factor left out, a plus for a minus, a
sum for a mean, another axis, no transpose, no mask, a constant or a slice off by one.  The check
must refuse each of them on every seed.  A mutant that passes is either equal in what it does, and
then it stands in EQUIVALENT with the reason, or the check is too weak.

mutmut, which tests the core, does not serve here: it leaves out no term and no factor, takes no
mean for a sum, and so makes 136 of the 590 mutants of lessons 1, 3, 5 and 12.
"""

import argparse
import ast
import copy
import functools
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import scipy.ndimage  # noqa: F401  # by a case, within its time limit, it might be left half done

from minifpt.exercises import engine as exercises

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 1.0                                             # of the processor's, for one seed

SWAPS = {"sum": "mean", "mean": "sum", "any": "all", "all": "any", "max": "min", "min": "max",
         "argmax": "argmin", "argmin": "argmax", "maximum": "minimum", "minimum": "maximum",
         "floor": "ceil", "zeros_like": "ones_like", "zeros": "ones"}
SYMMETRIC = {"maximum", "minimum", "max", "min"}           # their arguments may change places
DROPPED = {"T", "copy", "swapaxes", "transpose", "astype"}      # a method or attribute left out
BINARY = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
          ast.FloorDiv: ast.Mod, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr,
          ast.BitOr: ast.BitAnd}
COMPARE = {ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt),
           ast.GtE: (ast.Gt, ast.LtE), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
           ast.In: (ast.NotIn,), ast.NotIn: (ast.In,)}


def with_fields(node, **fields):
    """A copy of a node with other fields."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def variants(node):
    """The small mistakes that can be made at a node: nodes to stand in its place."""
    changed = functools.partial(with_fields, node)
    if isinstance(node, ast.BinOp):
        yield node.left                                   # a term or a factor is left out
        yield node.right
        if type(node.op) in BINARY:
            yield changed(op=BINARY[type(node.op)]())
        if isinstance(node.op, (ast.MatMult, ast.Sub, ast.Div)):
            yield changed(left=node.right, right=node.left)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            rest = node.values[:i] + node.values[i + 1:]
            yield rest[0] if len(rest) == 1 else changed(values=rest)
        yield changed(op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for op in COMPARE.get(type(node.ops[0]), ()):
            yield changed(ops=[op()])
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield changed(value=not node.value)
        elif isinstance(node.value, int):
            for value in {node.value + 1, node.value - 1, -node.value} - {node.value}:
                yield ast.parse(repr(value), mode="eval").body
        elif isinstance(node.value, float):
            for value in {2 * node.value, node.value / 2, 0.0} - {node.value}:
                yield changed(value=value)
    elif isinstance(node, ast.Slice):
        for name in ("lower", "upper"):
            bound = getattr(node, name)
            if bound is not None:
                yield changed(**{name: None})
                for op in (ast.Add(), ast.Sub()):
                    yield changed(**{name: ast.BinOp(bound, op, ast.Constant(1))})
    elif isinstance(node, ast.Attribute) and node.attr in DROPPED:
        yield node.value
    elif isinstance(node, ast.Call):
        yield from calls(node, changed)
    elif isinstance(node, ast.List) and len(node.elts) > 1:
        for i in range(len(node.elts)):
            yield changed(elts=node.elts[:i] + node.elts[i + 1:])
        yield changed(elts=[node.elts[1], node.elts[0], *node.elts[2:]])
    elif isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.ctx, ast.Load):
        yield changed(elts=node.elts[::-1])
    elif isinstance(node, (ast.GeneratorExp, ast.ListComp, ast.DictComp)):
        for i, generator in enumerate(node.generators):
            if generator.ifs:
                bare = with_fields(generator, ifs=[])
                yield changed(generators=[*node.generators[:i], bare, *node.generators[i + 1:]])
    elif isinstance(node, ast.AugAssign):
        yield ast.Pass()
        yield ast.Assign([node.target], node.value, lineno=node.lineno)


def calls(node, changed):
    """The same at a call: another function, an argument left out or exchanged, no call at all."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(
        node.func, "id", None)
    if name in SWAPS:
        where = "attr" if isinstance(node.func, ast.Attribute) else "id"
        yield changed(func=with_fields(node.func, **{where: SWAPS[name]}))
    if isinstance(node.func, ast.Attribute) and name in DROPPED:
        yield node.func.value
    if name == "where" and len(node.args) == 3:           # the mask is forgotten
        yield node.args[1]
        yield node.args[2]
    if len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred):
        yield node.args[0]                                # np.abs(x), np.sqrt(x), range(n), ...
    if len(node.args) >= 2 and name not in SYMMETRIC and not any(
            isinstance(a, ast.Starred) for a in node.args):
        for i in range(len(node.args) - 1):
            args = list(node.args)
            args[i], args[i + 1] = args[i + 1], args[i]
            yield changed(args=args)
    if name == "range":
        *first, last = node.args
        yield changed(args=[*first, ast.BinOp(last, ast.Sub(), ast.Constant(1))])
        if not first:
            yield changed(args=[ast.Constant(1), last])
    for i, keyword in enumerate(node.keywords):
        rest = node.keywords[:i] + node.keywords[i + 1:]
        if keyword.arg in ("axis", "keepdims", "k", "key"):
            yield changed(keywords=rest)
        if keyword.arg == "axis":
            for axis in ("0", "1", "-1", "-2"):
                other = ast.keyword("axis", ast.parse(axis, mode="eval").body)
                yield changed(keywords=[*node.keywords[:i], other, *node.keywords[i + 1:]])


@dataclass
class Mutant:
    """A solution with one mistake: ``name``, ``what`` in words, the AST of its module."""

    name: str
    what: str
    tree: ast.Module
    passed: list = field(default_factory=list)            # seeds
    seeds: int = 0


def mutants(name, function, module):
    """All mutants of a function (its AST) of a solution's module (its AST)."""
    seen, places = {ast.unparse(function)}, Counter()
    for number, node in enumerate(ast.walk(function)):
        if node is function or is_docstring(node, function):
            continue
        for new in variants(node):
            mutated = Replace(number, new).of(function)
            source = ast.unparse(ast.fix_missing_locations(mutated))
            if source in seen:
                continue
            seen.add(source)
            what = f"{ast.unparse(node)} -> {ast.unparse(ast.fix_missing_locations(new))}"
            places[what] += 1
            if places[what] > 1:
                what += f" [{places[what]}]"
            whole = ast.Module([mutated if part is function else part for part in module.body
                                if not (is_main(part) or is_exercise(part))], [])
            yield Mutant(name, what, whole)


class Replace(ast.NodeTransformer):
    """A copy of a function in which the node that ``ast.walk`` meets as ``number`` is another."""

    def __init__(self, number, new):
        self.number, self.new = number, new

    def of(self, function):
        function = copy.deepcopy(function)
        self.target = list(ast.walk(function))[self.number]
        return self.visit(function)

    def visit(self, node):
        return copy.deepcopy(self.new) if node is self.target else self.generic_visit(node)


def is_docstring(node, function):
    first = function.body[0]
    return isinstance(first, ast.Expr) and node in (first, first.value)


def is_main(node):
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


def is_exercise(node):
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(d, ast.Call) and d.func.id == "exercise" for d in node.decorator_list)


def judge(mutant, seeds):
    """Hold a mutant against its check, on each seed."""
    scope = {"__name__": "mutant"}
    mutant.seeds = len(seeds)
    exec(compile(mutant.tree, f"<mutant of {mutant.name}>", "exec"), scope)
    with patch.object(exercises, "SECONDS", SECONDS):     # some mutants run on and on
        mutant.passed = [seed for seed in seeds if exercises.examine(
            mutant.name, scope[mutant.name], seed).status == exercises.PASSED]


def solutions(lessons=()):
    """(lesson, exercise, function's AST, module's AST) of each exercise's solution."""
    exercises.load_exercises()
    for lesson in sorted((ROOT / "lessons" / "src").glob("[0-9][0-9]_*.py")):
        path = ROOT / "lessons" / "solutions" / lesson.name
        module = ast.parse(path.read_text(encoding="utf-8"))
        for part in module.body:
            if isinstance(part, ast.FunctionDef) and part.name in exercises.EXERCISES and (
                    not lessons or path.stem[:2] in lessons or part.name in lessons):
                yield path.stem[:2], part.name, part, module


def equivalent(mutant):
    """Why a mutant that passes is as right as the solution, or ``None``."""
    if mutant.name in ANY and len(mutant.passed) == mutant.seeds:
        return f"another right answer: {ANY[mutant.name]}"
    return next((why for names, pattern, why in EQUIVALENT
                 if mutant.name in names.split() and re.search(pattern, mutant.what)), None)


# Many answers are right, and the check tests what is asked for itself: what passes on every seed
# is one of them.
ANY = {
    "choose_step": "the central difference at this step is right to 1e-6",
    "loss_scale": "nothing overflows, and few entries become 0",
    "unseen_change": "every number moved, and layer norm gives the same",
    "revealing_data": "each mistake changes dq or dk",
    "worth_computing": "the entries hold 95 % of what the best ones hold",
    "parts_to_spare": "the set is as cheap as the greedy one",
    "spend": "the list fits the budget and has the output layer",
    "reach": "it orders the curves, knows no unit, and a single step does not decide",
    "predict": "it is between the slowest limit and the sum of the three",
    "steps_to_learn": "it is the step",
    "in_circles": "it tells the loop from all texts that are long, short, of few letters ...",
    "better_of_two": "its rule is right about a steady difference, a small one, one question, few",
    "fair_tests": "each arm has its own best rate by validation, and the same seeds",
    "best_table": "it finds the planted pairs among tables that are long, short or all alike",
}
AXIS = "the same axis, counted from the other end"
BLANK = "each entry is written before it is read"
SIGN = "only the size of the difference counts"
TEXT = "another order or type of what is returned or read, no other value"
REST = "reshape takes any number below 0 as 'the rest'"
# Exercises, pattern of the mutant, why it is as right as the solution.
EQUIVALENT = [
    ("restored_share induction_score", r"^True -> False", "the lists are equally long"),
    ("restored_share", r"^np.mean|^z\[i\] - z\[j\] -> z\[j\] - z\[i\]$|^zip\(logits, right",
     "a factor of all three scores cancels"),
    ("induction_score", r"axis=0\) -> .*axis=-2\)$", AXIS),
    ("strings_right best_rate bigram_bits", r"axis=1([,)]).* -> .*axis=-1\1", AXIS),
    ("log_softmax_backward rms_norm_backward weighted_means", r"axis=-1.* -> .*axis=1\b", AXIS),
    ("alignment", r"^a @ b -> b @ a$|^\(wrong, right\) -> \(right, wrong\)$",
     "the angle is the same from both sides"),
    ("log_softmax_backward rms_norm_backward windowed_attention weighted_means",
     r"^1 -> -1 ?(\[[23]\])?$", AXIS),
    ("rms_norm_backward answer_to_no_question decay_backward row_gradient",
     r"axis=0\) -> .*axis=-2\)$", AXIS),
    ("bias_gradient copy_share say_the_mean swish_backward", r"^\(0, 1\) -> \(1, 0\)$", TEXT),
    ("decay_backward", r"zeros_like\(x\) -> np.ones_like\(x\)$", BLANK),
    ("most_moved_scale", r"^np.sqrt\((.*)\) -> \1$", "the root keeps the order"),
    ("most_moved_scale", r"mean\((.*)\) -> np.sum\(\1\)$", "all scales have the same length"),
    ("most_moved_scale", r"after\[name\] - before\[name\] -> before", SIGN),
    ("goes_by_position", r"mean\(axis=-1\) -> .*sum\(axis=-1\)$", "as many rows for each head"),
    ("goes_by_position", r"^maps.mean\(axis=0\) -> maps.sum\(axis=0\)$",
     "as many texts for each head"),
    ("multi_query_backward", r"swapaxes\(-1, -2\) -> .*swapaxes\(-2, -1\)$", TEXT),
    ("bigram_bits goes_by_position", r"^(float|int|np.array)\((.*)\) -> \2$", TEXT),
    ("products_of_a_step", r"^range\(len\(trained\)\) -> range\(1, len",
     "nothing is below the first"),
    ("products_of_a_step", r"^:i -> :i - 1$",
     "the first layer, whose slice now wraps, counts in place of the one above the lowest trained"),
    ("freeze_below", r"^\['input', 'pos'.* -> \['pos', 'input'", TEXT),
    ("best_rate", r"^(float|bool)\((.*)\) -> \2$|^\((.*), (.*)\) -> \(\4, \3\)$", TEXT),
    ("best_rate", r"mean\(axis=1\) -> accuracy.sum\(axis=1\)$", "as many seeds for each rate"),
    ("chain_backward", r"^True -> False$", "there are as many caches as pairs"),
    ("gap", r"np.mean\(a\) < np.mean\(b\) -> np.mean\(a\) <= np.mean\(b\)$",
     "two means are never equal"),
    ("colour_patches", r"reshape\(B, H // p, p, .*colours\) -> .*reshape\(H // p, B, p,",
     "the first two axes stay side by side, and are joined and cut again in the same order"),
    ("colour_patches", r"p, colours\) -> .*reshape\(B, H // p, p, W // p, colours, p\)$",
     "the last two axes stay side by side, and are joined again in the same order"),
    ("colour_patches", r"^3 -> -3$", AXIS),
    ("tied_gradient", r"^1 -> 2 \[[34]\]$", REST),
    ("neighbour_score", r"^(row|column)\[:, None\] - \1 -> \1 - \1\[:, None\]$", SIGN),
    ("lora_backward", r"^1 -> 2", REST),
    ("fewest_operations", r"^\((2 .*), (2 .*)\) -> \(\2, \1\)$", "a sum, in another order"),
    ("time_to_grow", r"^100 -> |, 0, 100\) -> .*100, 0\)|^trace\(t\) - 1 -> 1 - trace|^0 -> -1",
     "another bracket of the same root"),
    ("time_to_grow", r">= 1 -> trace\(0\) > 1$", "the root is at 0 then"),
    ("token_sums", r"axis=1\) -> .*axis=-2\)$", AXIS),
    ("product_entry", r"^x\[n\] @ w\[o\] -> w\[o\] @ x\[n\]$", "the same sum"),
    ("decay_backward", r"^range\(T\) -> range\(T - 1\)$", "the last state is read by no one"),
    ("choose_step", r"^x [+-] h -> x$",
     "on one draw in twenty the one-sided slope settles at a step that is right"),
]


def passing(chosen, seeds):
    """Return a line for each of these mutants that passes and is not equivalent."""
    for mutant in chosen:
        judge(mutant, seeds)
    return [f"{m.name} passes {len(m.passed)} of {len(seeds)}: {m.what}" for m in chosen
            if m.passed and not equivalent(m)]


def main():
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("which", nargs="*", help="lessons (03) or exercises; all by default")
    top.add_argument("--seeds", type=int, default=20)
    args, lines = top.parse_args(), []
    for _, name, function, module in list(solutions(args.which)) or top.error(
            f"there is no lesson or exercise {', '.join(args.which)}"):
        found = list(mutants(name, function, module))
        lines += (passed := passing(found, range(args.seeds)))
        print(f"{name}: {len(passed)} of {len(found)} pass", *passed, sep="\n  ", flush=True)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
