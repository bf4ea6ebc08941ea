"""What an arm's label becomes in tables and pictures; docs/results/index.md defines these words."""

import re

from minifpt import tasks

SOURCE = {"language": "novels", "masked": "hidden bytes", "vision": "digits, no mask"}
WORDS = [(re.compile(pattern), word) for pattern, word in (
    (r"random \(paper, Llama\)", "random (Llama)"),
    (r"random \(paper\)|random, as the paper draws it", "random"),
    (r"random \(spread 0\.55\)", "random, rescaled"),
    (r"random \((\w+), spread ([\d.]+)\)", r"random \1 at \2"),
    (r"statistics:minigpt-language", "matched random"),
    (r"statistics:minigpt-(\w+)(?:\.npz)?", lambda m: f"matched random ({source(m[1])})"),
    (r"\b(?!of\b)(\w+) statistics\b|\bstatistics of (\w+)",
     lambda m: f"matched random ({source(m[1] or m[2])})"),
    (r"(\w+) spectrum\b|\bspectrum of (\w+)",
     lambda m: f"same singular values ({source(m[1] or m[2])})"),
    (r"language random", "random"), (r"(?:masked|vision) random", "random, no mask"),
    (r"novels, trained part alone", "matched random, novels' norms and positions"),
    (r"novels, frozen part alone", "novels, matched random norms and positions"),
    (r"language-wide", "wide block pretrained on novels"),
    (r"^masked$", "hidden bytes"), (r"^vision$", "digits, no mask"),
    (r"few-(\w+)-(\d+)", lambda m: f"{tasks.label_of(m[1])}, {int(m[2]):,} labels"),
    (r"listops-512", "the paper's ListOps"),
    (r"(\w+)-long", lambda m: f"{tasks.label_of(m[1])}, long runs"),
    (r"(bit-\w+)-6$", lambda m: f"{tasks.label_of(m[1])}, 6 blocks"),
    (r"\b(\w+) (500|1500)\b", lambda m: f"{source(m[1])}, {int(m[2]):,} steps"),
    (r"\b(\w+) 4500\b", lambda m: source(m[1])),           # the full dose
    (r"\ball trained", "trained whole"), (r"softmax regression", "linear classifier"),
    (r"logistic regression", "linear classifier, to the end"), (r"\bmimetic", "mimetic attention"),
    (r"\bstatistics\b", "matched random"), (r"\blanguage\b", "pretrained on novels"),
    (r"\bimages\b", "pretrained on digits"), (r"\bbits\b", "pretrained on bit memory"),
    (r"^brackets\b", "pretrained on brackets"),
    (r"\brandom\b(?! state| gains)", "random, too small"))]
WORD = re.compile("|".join(f"(?P<w{i}>{pattern.pattern})" for i, (pattern, _) in enumerate(WORDS)))


def source(name):
    """What a trunk was pretrained on."""
    return SOURCE.get(name, name)


def word(label):
    """The words for an arm's label."""
    def replace(match):
        pattern, word = WORDS[int(match.lastgroup[1:])]
        return pattern.sub(word, match[0])
    return WORD.sub(replace, label)
