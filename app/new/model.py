"""`prep new model NAME`: the layers of a model family that are not those of Llama, and its entry."""

from __future__ import annotations

from app.new import Taken

NEXT = """\
engine/models/families/NAME.py  the entry; without other layers than Llama's delete engine/models/NAME.py
engine/models/NAME.py  the layer, with the checkpoint's names for its modules
prep test --no-lint tests/models/test_families.py  names each missing part, and the row for engine/models/README.md
prep test --no-lint tests/differential/test_logits.py -k TITLE  weights without a place; logits against transformers
prep test --no-lint tests/differential tests/models -m "slow or not slow" -k TITLE  every field of config.json"""

_MODEL = '''\
"""FILL IN what makes a {name} differ from a Llama, and the source."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.models.llama import LlamaDecoderLayer, LlamaForCausalLM


class {title}DecoderLayer(LlamaDecoderLayer):
    """FILL IN the layer. Its modules have the names of the checkpoint, below model.layers.N."""

    def __init__(self, config: ModelConfig, layer_index: int, dtype: torch.dtype) -> None:
        super().__init__(config, layer_index, dtype)

    def forward(
        self, hidden: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take and return what is new [T, hidden] and the stream to add it to; residual is None in the first layer."""
        raise NotImplementedError("FILL IN the layer of {name}")


class {title}ForCausalLM(LlamaForCausalLM):
    """FILL IN what else differs: `embed_tokens`, `compute_logits`."""

    layer = {title}DecoderLayer
'''
_ENTRY = '''\
"""FILL IN the names of the models."""

from __future__ import annotations

from typing import Any

from engine.config import ModelConfig
from engine.models.family import Family, defaults, same_window
from engine.models.fields import Fields


def _configure(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """FILL IN: fields of ModelConfig; numbers for your layer go to "extras", such as fields.number("my_scale")."""
    return {{"sliding_window": same_window(fields, config, None), "extras": {{}}}}


{upper} = Family(
    "{title}ForCausalLM",  # FILL IN: as in `architectures`
    model_type="{name}",
    # or engine.models.llama:LlamaForCausalLM
    model="engine.models.{name}:{title}ForCausalLM",
    reads=(),  # FILL IN: fields of config.json that _configure reads
    defaults=defaults(2048),  # FILL IN: those of transformers' config class
    configure=_configure,
    # FILL IN: {{"{name}": {{}}}}, random tiny models to compare with transformers, with values that matter
    tiny={{}},
    features="",  # FILL IN: what it has
)
'''


def skeleton(name: str) -> dict[str, str]:
    """Return the files of a model family. Raises Taken for a name that is taken."""
    from engine.models.families import FAMILIES

    title = name.title().replace("_", "")
    paths = f"engine/models/{name}.py", f"engine/models/families/{name}.py"
    if f"{title}ForCausalLM" in FAMILIES:
        raise Taken(f"there is a family {title}ForCausalLM", *paths)
    parts = {"name": name, "title": title, "upper": name.upper()}
    return dict(zip(paths, (_MODEL.format(**parts), _ENTRY.format(**parts)), strict=True))
