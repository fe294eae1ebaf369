"""The built-in nodes: one file, one node, its whole meaning.

Adding a node is adding one file here: every module of this folder is imported, so that documents and the catalogue know
its node. The names below are those that other packages import.
"""

import importlib
import pkgutil

from nodes.absorb_query import AbsorbQuery
from nodes.absorb_value import AbsorbValue
from nodes.add import Add
from nodes.all_gather import AllGather
from nodes.all_reduce import AllReduce
from nodes.append_cache import AppendCache
from nodes.append_tail import AppendTail
from nodes.argmax import Argmax
from nodes.argmax_exchange import ArgmaxExchange
from nodes.cache_slots import CacheSlots
from nodes.cast import Cast
from nodes.certified_linear import CertifiedLinear
from nodes.choose import Choose
from nodes.concat import Concat
from nodes.embedding import Embedding
from nodes.extend_selection import ExtendSelection
from nodes.grammar_mask import GrammarMask
from nodes.increment import Increment
from nodes.indexer_scores import IndexerScores
from nodes.key_pool import KeyPool
from nodes.layer_norm import LayerNorm
from nodes.linear import Linear
from nodes.local_argmax import LocalArgmax
from nodes.local_experts import LocalExperts
from nodes.quantised_linear import QuantisedLinear
from nodes.rms_norm import RmsNorm
from nodes.routed_experts import RoutedExperts
from nodes.select_topk import SelectTopk
from nodes.slice import Slice
from nodes.sparse_mla_attention import SparseMlaAttention
from nodes.split_heads import SplitHeads
from nodes.swiglu import Swiglu
from nodes.token_of_row import TokenOfRow
from nodes.token_probability import TokenProbability
from nodes.topk_router import TopkRouter
from nodes.trimmed_grammar_mask import TrimmedGrammarMask

__all__ = [
    "AbsorbQuery",
    "AbsorbValue",
    "Add",
    "AllGather",
    "AllReduce",
    "AppendCache",
    "AppendTail",
    "Argmax",
    "ArgmaxExchange",
    "CacheSlots",
    "Cast",
    "CertifiedLinear",
    "Choose",
    "Concat",
    "Embedding",
    "ExtendSelection",
    "GrammarMask",
    "Increment",
    "IndexerScores",
    "KeyPool",
    "LayerNorm",
    "Linear",
    "LocalArgmax",
    "LocalExperts",
    "QuantisedLinear",
    "RmsNorm",
    "RoutedExperts",
    "SelectTopk",
    "Slice",
    "SparseMlaAttention",
    "SplitHeads",
    "Swiglu",
    "TokenOfRow",
    "TokenProbability",
    "TopkRouter",
    "TrimmedGrammarMask",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
