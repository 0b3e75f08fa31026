"""Text from language models: engines that keep a key-value cache, tokenizers, and how the next token is chosen."""

from .generate import Generated, generate
from .language_model import LanguageModel
from .perplexity import perplexity
from .sampling import Sampling
from .tokenizers import Tokenizer, load_tokenizer

__all__ = ["Generated", "LanguageModel", "Sampling", "Tokenizer", "generate", "load_tokenizer", "perplexity"]
