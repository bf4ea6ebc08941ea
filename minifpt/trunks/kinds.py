"""The classes of config, trunk and language model for each family of models."""

from ..files import weights
from ..gpt2 import GPT2, GPT2Config, LanguageModel
from .encoder import Encoder, EncoderConfig
from .llama import Llama, LlamaConfig, LlamaLM
from .lstm import LSTM, LSTMConfig

CLASSES = {GPT2Config: (GPT2, LanguageModel), LlamaConfig: (Llama, LlamaLM),
           EncoderConfig: (Encoder, LanguageModel), LSTMConfig: (LSTM,)}


def config_class(model_type):
    """Return the class of the config of a model type, by default GPT-2's."""
    return next((kind for kind in (LlamaConfig, EncoderConfig) if model_type in kind.families),
                GPT2Config)


def read(name, dropout=None):
    """Return ``(config, settings, tensors)`` of weights by their name or path, whose numbers are
    not read yet.  ``dropout`` replaces the file's.  Raises ``ValueError`` or
    ``FileNotFoundError``."""
    path = weights.find(name)
    settings, tensors = weights.read(path, dropout)
    config = weights.config_of(settings, path, config_class(settings.get("model_type")))
    weights.check_size(path, config, tensors)
    return config, settings, tensors
