"""Studies of minifpt's authors: a module for each, its predictions and its runs."""
