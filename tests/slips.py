"""Wrong answers that are one slip away from a right one: made from the solutions of the exercises.

A slip is what a student writes who has the right idea: another sign, a sum for a mean, another
axis, one too many, a term or a root left out, ``<`` for ``<=``, a transpose forgotten.

    python tests/slips.py               the table: wrong answers and hints of each exercise
"""

import ast
import copy

SWAPPED = {"sum": "mean", "mean": "sum", "max": "min", "min": "max", "argmax": "argmin",
           "argmin": "argmax", "log2": "log", "log": "log2", "exp": "expm1", "ceil": "floor",
           "zeros": "ones", "ones": "zeros", "var": "std", "std": "var", "any": "all",
           "all": "any", "maximum": "minimum", "minimum": "maximum", "cumsum": "cumprod",
           "outer": "multiply", "tril": "triu", "triu": "tril"}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
             ast.FloorDiv: ast.Div, ast.Pow: ast.Mult}
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
               ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
LEFT_OUT = {"sqrt", "exp", "log", "log2", "abs", "float", "round", "sorted", "cumsum", "sum",
            "mean", "square", "tanh", "expit", "set", "softmax", "sign"}


def slips_at(node, arguments):
    """Yield (what, replacement) for each slip at a node of a syntax tree; ``arguments`` are the
    names of the function's own."""
    if isinstance(node, ast.Name) and node.id in arguments and isinstance(node.ctx, ast.Load):
        for other in arguments:
            if other != node.id:
                yield f"{other} for {node.id}", ast.Name(other, node.ctx)
    elif isinstance(node, ast.Return):
        for what, result in (("the negative", ast.UnaryOp(ast.USub(), node.value)),
                             ("twice as much", ast.BinOp(ast.Constant(2), ast.Mult(), node.value)),
                             ("half as much", ast.BinOp(node.value, ast.Div(), ast.Constant(2))),
                             ("one more", ast.BinOp(node.value, ast.Add(), ast.Constant(1)))):
            yield what, ast.Return(result)
    elif isinstance(node, ast.BinOp):
        if type(node.op) in OPERATORS:
            yield "another operator", ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
        yield "the right part left out", node.left
        if isinstance(node.op, (ast.Add, ast.Mult)):
            yield "the left part left out", node.right
        if isinstance(node.op, (ast.Sub, ast.Div, ast.MatMult)):
            yield "the other way round", ast.BinOp(node.right, node.op, node.left)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield "another comparison", ast.Compare(
            node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        yield "without the minus or not", node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        for more in (1, -1):
            yield f"{node.value} {more:+d}", ast.Constant(node.value + more)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "the opposite", ast.Constant(not node.value)
    elif isinstance(node, ast.Attribute):
        if node.attr in SWAPPED:
            yield f"{SWAPPED[node.attr]} for {node.attr}", ast.Attribute(
                node.value, SWAPPED[node.attr], node.ctx)
        if node.attr == "T":
            yield "not transposed", node.value
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in LEFT_OUT and isinstance(node.func, ast.Attribute) and not (
                isinstance(node.func.value, ast.Name) and node.func.value.id in ("np", "math")):
            yield f"{name} left out", node.func.value
        elif name in LEFT_OUT and node.args:
            yield f"{name} left out", node.args[0]
        for i, keyword in enumerate(node.keywords):
            if keyword.arg == "axis":
                rest = node.keywords[:i] + node.keywords[i + 1:]
                yield "without the axis", ast.Call(node.func, node.args, rest)
                if isinstance(keyword.value, ast.Constant):
                    other = 0 if keyword.value.value else 1
                    yield f"axis {other}", ast.Call(node.func, node.args, [
                        *rest, ast.keyword("axis", ast.Constant(other))])
    elif isinstance(node, ast.Slice) and (node.lower or node.upper):
        yield "the whole axis", ast.Slice(None, None, node.step)
    elif isinstance(node, ast.IfExp):
        yield "always the first case", node.body
        yield "always the second case", node.orelse


def statement_slips(function):
    """Yield (what, path) for each statement that a student may forget."""
    for block in ast.walk(function):
        for statement in getattr(block, "body", []) if isinstance(getattr(
                block, "body", None), list) else []:
            if isinstance(statement, (ast.AugAssign, ast.If)) or (
                    isinstance(statement, ast.Assign)
                    and isinstance(statement.targets[0], ast.Subscript)) or (
                    isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
                yield f"without '{ast.unparse(statement):.40}'", statement


class Replace(ast.NodeTransformer):
    """Replace the node ``old`` with ``new``; ``None`` removes a statement."""

    def __init__(self, old, new):
        self.old, self.new = old, new

    def visit(self, node):
        return self.new if node is self.old else self.generic_visit(node)


def slips(source, name):
    """Return [(what, function)]: the answers that are one slip away from the function ``name`` of
    a file of solutions."""
    tree, namespace = ast.parse(source), {"__name__": "slip"}
    exec(compile(tree, f"<{name}>", "exec"), namespace)
    answers, texts = [], set()
    target = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    docstring = target.body[0]
    arguments = [argument.arg for argument in target.args.args]
    places = [(what, node, new) for node in ast.walk(target)
              for what, new in slips_at(node, arguments)]
    places += [(what, node, None) for what, node in statement_slips(target)]
    for what, old, new in places:
        if old is getattr(docstring, "value", None):
            continue
        # Nodes are found again by identity: the function is copied with its memo.
        memo = {}
        changed = copy.deepcopy(target, memo)
        replacement = copy.deepcopy(new, memo) if new is not None else (
            ast.Pass() if isinstance(old, ast.stmt) else None)
        changed = ast.fix_missing_locations(Replace(memo[id(old)], replacement).visit(changed))
        text = ast.unparse(changed)
        if text in texts:
            continue
        texts.add(text)
        module, namespace = ast.Module([changed], []), dict(namespace)
        exec(compile(module, f"<{name}: {what}>", "exec"), namespace)
        line = getattr(old, "lineno", 0) - target.lineno
        answers.append((f"{what}, line {line}: {ast.unparse(old):.50}", namespace[name]))
    return answers


# Slips that leave an answer right (an index of -1 for 1, a difference the other way round), and in
# open exercises other choices of a threshold or a measure.
HARMLESS = {
    "best_rate": [
        "float left out, line 4: float(best)",
        "sum for mean, line 2: accuracy.mean",
    ],
    "best_table": [
        "1 +1, line 7: 1",
        "1 -1, line 7: 1",
        "half as much, line 7: return cosines[a, b].mean() - cosines[np.triu_indi",
        "one more, line 7: return cosines[a, b].mean() - cosines[np.triu_indi",
        "twice as much, line 7: return cosines[a, b].mean() - cosines[np.triu_indi",
    ],
    "better_of_two": [
        "0 +1, line 6: 0",
        "0 -1, line 6: 0",
        "1 +1, line 5: 1",
        "1 -1, line 5: 1",
        "3 +1, line 6: 3",
        "3 -1, line 6: 3",
        "abs left out, line 4: np.abs(d - np.median(d))",
        "another comparison, line 6: abs(z) < 3",
        "another comparison, line 6: z > 0",
        "another operator, line 4: d - np.median(d)",
        "argmin for argmax, line 4: np.abs(d - np.median(d)).argmax",
        "the other way round, line 4: d - np.median(d)",
        "the right part left out, line 4: d - np.median(d)",
    ],
    "bigram_bits": [
        "float left out, line 2: float(alpha)",
    ],
    "cache_bytes": [
        "another operator, line 2: 2 * n_layer * tokens * n_group * n_embd // n_head",
    ],
    "chain_backward": [
        "the opposite, line 6: True",
    ],
    "choose_step": [
        "0 +1, line 14: 0",
        "0 -1, line 14: 0",
        "0.001 +1, line 14: 0.001",
        "1 -1, line 14: 1",
        "10.0 +1, line 10: 10.0",
        "10.0 -1, line 10: 10.0",
        "1e-06 +1, line 14: 1e-06",
        "2 +1, line 12: 2",
        "2 -1, line 12: 2",
        "7.3 +1, line 16: 7.3",
        "7.3 -1, line 16: 7.3",
        "another comparison, line 14: changes[0] < 0.001",
        "another comparison, line 14: changes[1] < 1e-06",
        "half as much, line 15: return h",
        "the left part left out, line 12: 2 * h",
        "the other way round, line 12: (f(x + h) - f(x - h)) / (2 * h)",
        "the other way round, line 12: f(x + h) - f(x - h)",
        "the other way round, line 13: np.array(slopes[-3:-1]) / slopes[-1]",
        "the other way round, line 13: np.array(slopes[-3:-1]) / slopes[-1] - 1",
        "twice as much, line 15: return h",
    ],
    "decay_backward": [
        "dy for x, line 2: x",
        "dy for x, line 6: x",
    ],
    "freeze_below": [
        "twice as much, line 2: return ','.join(['input', 'pos', 'attn', 'mlp', *(",
    ],
    "fair_tests": [
        "sum for mean, line 5: np.mean",
    ],
    "gap": [
        "another comparison, line 2: np.mean(a) < np.mean(b)",
    ],
    "goes_by_position": [
        "sum for mean, line 4: maps.mean",
        "sum for mean, line 4: maps.mean(axis=0).max(axis=-1).mean",
    ],
    "gradient_is_right": [
        "another comparison, line 10: np.abs(gradient - numerical).max() <= 1e-06 * np.a",
        "gradient for x, line 4: x",
        "gradient for x, line 5: x",
        "the other way round, line 10: gradient - numerical",
    ],
    "in_circles": [
        "1 +1, line 5: 1",
        "1 -1, line 5: 1",
        "13 +1, line 4: 13",
        "13 -1, line 4: 13",
        "14 +1, line 4: 14",
        "14 -1, line 4: 14",
        "another operator, line 4: len(text) - 13",
        "half as much, line 5: return 1 - len(set(strings)) / len(strings)",
        "one more, line 5: return 1 - len(set(strings)) / len(strings)",
        "the right part left out, line 4: len(text) - 13",
        "twice as much, line 5: return 1 - len(set(strings)) / len(strings)",
    ],
    "induction_score": [
        "the opposite, line 3: True",
    ],
    "log_softmax_backward": [
        "without the minus or not, line 3: -1",
    ],
    "lora_backward": [
        "1 +1, line 3: 1",
    ],
    "loss_scale": [
        "30000.0 +1, line 6: 30000.0",
        "30000.0 -1, line 6: 30000.0",
        "half as much, line 6: return 2.0 ** np.floor(np.log2(30000.0 / np.abs(gr",
        "twice as much, line 6: return 2.0 ** np.floor(np.log2(30000.0 / np.abs(gr",
    ],
    "masked_gradient": [
        "without the minus or not, line 4: -1",
        "without the minus or not, line 5: -1",
    ],
    "merge_step": [
        "the opposite, line 4: True",
        "the opposite, line 5: True",
    ],
    "most_moved_scale": [
        "after for before, line 4: before",
        "sqrt left out, line 3: np.sqrt(np.mean((after[name] - before[name]) ** 2)",
        "sum for mean, line 3: np.mean",
        "the other way round, line 3: after[name] - before[name]",
    ],
    "multi_query_backward": [
        "dy for q, line 2: q",
        "k for q, line 2: q",
        "v for q, line 2: q",
    ],
    "neighbour_score": [
        "the other way round, line 3: column[:, None] - column",
        "the other way round, line 3: row[:, None] - row",
    ],
    "never_seen": [
        "0 -1, line 2: 0",
    ],
    "overlapping_backward": [
        "1 +1, line 6: 1",
    ],
    "pixel_of": [
        "another operator, line 2: W // p",
    ],
    "probe_gradient": [
        "f for y, line 2: y",
    ],
    "ranges_apart": [
        "m for n, line 2: n",
    ],
    "reach": [
        "1 +1, line 5: 1",
        "1 -1, line 5: 1",
        "2 +1, line 5: 2",
        "another operator, line 5: K - 1",
        "log left out, line 5: np.log(2)",
        "log2 for log, line 4: np.log",
        "log2 for log, line 5: np.log",
        "one more, line 5: return np.log(2) / np.maximum(fades, np.log(2) / (",
        "the right part left out, line 5: K - 1",
        "twice as much, line 5: return np.log(2) / np.maximum(fades, np.log(2) / (",
        "without the axis, line 4: np.diff(np.log(lengths), axis=1)",
    ],
    "restored_share": [
        "sum for mean, line 3: np.mean",
        "the opposite, line 3: True",
        "the other way round, line 3: z[i] - z[j]",
    ],
    "rms_norm": [
        "without the minus or not, line 2: -1",
    ],
    "rms_norm_backward": [
        "without the minus or not, line 2: -1",
        "without the minus or not, line 5: -1",
    ],
    "rotated_score": [
        "k for q, line 2: q",
        "k for q, line 5: q",
    ],
    "ruler": [
        "20 +1, line 6: 20",
        "20 -1, line 6: 20",
        "sqrt left out, line 6: np.sqrt(T)",
    ],
    "seeds_needed": [
        "1 +1, line 2: 1",
        "1 -1, line 2: 1",
        "floor for ceil, line 2: math.ceil",
        "one more, line 2: return math.ceil(2 * ((1.96 + 0.8416) * spread / d",
        "the right part left out, line 2: math.ceil(2 * ((1.96 + 0.84"
        "16) * spread / differen",
    ],
    "sees_the_future": [
        "1 -1, line 9: 1",
        "half as much, line 14: return False",
        "the negative, line 14: return False",
        "twice as much, line 14: return False",
    ],
    "softmax_with_temperature": [
        "without the minus or not, line 3: -1",
        "without the minus or not, line 4: -1",
    ],
    "spend": [
        "another comparison, line 7: sizes[name] <= left",
        "sorted left out, line 6: sorted(others, key=lambda name: 'ln_' not in name)",
    ],
    "steps_to_learn": [
        "accuracy for steps, line 4: steps",
    ],
    "tied_gradient": [
        "1 +1, line 3: 1",
        "dx for y, line 2: y",
    ],
    "truncated_backward": [
        "h for dy, line 2: dy",
        "h for dy, line 4: dy",
    ],
    "unseen_change": [
        "1.0 +1, line 3: 1.0",
        "another operator, line 3: x + 1.0",
        "one more, line 3: return x + 1.0",
    ],
    "vote_level": [
        "1 +1, line 3: 1",
    ],
    "windowed_attention": [
        "k for q, line 2: q",
        "k for q, line 3: q",
        "q for k, line 2: k",
        "v for k, line 2: k",
        "v for q, line 2: q",
    ],
    "worth_computing": [
        "2 +1, line 4: 2",
        "2 -1, line 4: 2",
        "sum left out, line 4: (A ** 2).sum(axis=-1, keepdims=True)",
        "the right part left out, line 4: A ** 2",
        "without the minus or not, line 4: -1",
    ],
    "wrong_but_useful": [
        "half as much, line 2: return np.sqrt(y) * (dy - (dy * y).sum(axis=-1, ke",
        "twice as much, line 2: return np.sqrt(y) * (dy - (dy * y).sum(axis=-1, ke",
    ],
}


if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent))
    import test_exercises
    print(test_exercises.hints_table())
