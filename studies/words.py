"""Turn an arm's label into the words of tables and pictures, see docs/results/index.md."""

import re

from minifpt import tasks

WORDS = [(re.compile(pattern), word) for pattern, word in (
    (r"random \(0\.02\)", "random, too small"),
    (r"random \(spread 0\.55\)", "random, rescaled"),
    (r"random \((\w+), spread ([\d.]+)\)", r"random \1 at \2"),
    (r"statistics:minigpt-language", "matched random"),
    (r"statistics:minigpt-(\w+)|\bstatistics of (\w+)",
     lambda m: f"matched random ({m[1] or m[2]})"),
    (r"novels, trained part alone", "matched random, novels' norms and positions"),
    (r"novels, frozen part alone", "novels, matched random norms and positions"),
    (r"^few-digits$", "few digits"),
    (r"few-(\w+)-(\d+)", lambda m: f"{tasks.label_of(m[1])}, {int(m[2]):,} labels"),
    (r"listops-512", "the paper's ListOps"),
    (r"(\w+)-long\b", lambda m: f"{tasks.label_of(m[1])}, long runs"),
    (r"(bit-\w+)-6$", lambda m: f"{tasks.label_of(m[1])}, 6 blocks"),
    (r"\ball trained", "trained whole"), (r"softmax regression", "linear classifier"),
    (r"\bstatistics\b", "matched random"), (r"\blanguage\b", "pretrained on novels"),
    (r"\bimages\b", "pretrained on digits"), (r"\bbits\b", "pretrained on bit memory"))]
WORD = re.compile("|".join(f"(?P<w{i}>{pattern.pattern})" for i, (pattern, _) in enumerate(WORDS)))


def word(label):
    """Return the words for an arm's label."""
    def replace(match):
        pattern, word = WORDS[int(match.lastgroup[1:])]
        return pattern.sub(word, match[0])
    return WORD.sub(replace, label)
