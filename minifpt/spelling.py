"""Which name a misspelt word may mean: without NumPy, so ``minifpt --help`` starts at once."""

import difflib


def suggestion(word, names, synonyms=None):
    """Return " (did you mean 'NAME'?)" with the name that is nearest to a word, or "".

    synonyms   {another word: the name that it stands for}."""
    known = {name.lower().lstrip("-"): name for name in names}     # dashes make all options alike
    known |= synonyms or {}
    near = difflib.get_close_matches(str(word).lower().lstrip("-"), known, 1)
    return f" (did you mean '{known[near[0]]}'?)" if near else ""
