"""What minifpt is: a new command, task, trunk, adapter or public name is a decision."""

import re

import minifpt
from minifpt import adapters, cli, tasks
from minifpt.cli import options
from minifpt.experiments import pretrain

COMMANDS = """train playground info summary steps report attention gradcheck compare reproduce
    pretrain convert generate perplexity lessons new check""".split()
TASKS = """bit-memory bit-xor cifar10 cifar10-gray digits homology listops mnist text
    typos""".split()
TRUNKS = ["minigpt-language", "FILE or FOLDER", "random, random:SHAPE", "random:1x2x256@1.41",
          "random@gpt2", "random:FAMILY:SHAPE", "statistics:NAME", "lstm:3x128", "...,qk=105",
          "A+MASK=B", "FILE.py:FUNCTION"]                 # as --help shows them
ADAPTERS = ["bitfit", "lora"]
SOURCES = ["bits", "images", "language", "masked", "vision"]
PUBLIC = """FPT GPT2 LSTM Diverged FreezeMask GPT2Config History LSTMConfig LanguageModel
    assert_gradients files functional gradcheck heads load new optim steps tasks trace
    train""".split()


def test_the_commands_are_these():
    assert sorted(cli.COMMANDS) == sorted(COMMANDS)


def test_the_tasks_adapters_and_sources_of_weights_are_these():
    assert tasks.names() == TASKS
    assert sorted(adapters.OPTIONS) == ADAPTERS and sorted(pretrain.SOURCES) == SOURCES


def test_the_kinds_of_trunks_are_these():
    assert re.findall(r"(?m)^ {4}(\S.*?)(?=  )", options.TRUNKS) == TRUNKS


def test_the_public_names_are_these_and_each_can_be_imported():
    assert minifpt.__all__ == PUBLIC
    assert all(hasattr(minifpt, name) for name in PUBLIC)
