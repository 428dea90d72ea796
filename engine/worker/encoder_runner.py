"""Replace placeholder tokens of images by their embeddings.

    chunk of a row     t  t  P2 P3 P4 ... P9           embeddings 2..9 of the image overwrite the looked-up rows
    inputs_embeds    [ e  e  i2 i3 i4 ... i9 ]

The scheduler decides which embeddings to keep (`engine/core/encoder_cache.py`).
Source: vLLM v1/worker/gpu_model_runner.py (_execute_mm_encoder, _gather_mm_embeddings).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engine.core.request import MultiModalFeature
from engine.core.sched_output import SchedulerOutput
from engine.worker.model_input import ModelInput


class EncoderRunner:
    """Encoded images by content hash, and the image features of running requests."""

    def __init__(self, encoder: Callable[..., Tensor]) -> None:
        self._encoder = encoder
        self._encoded: dict[str, Tensor] = {}
        self._features: dict[str, list[MultiModalFeature]] = {}

    def update(self, out: SchedulerOutput) -> None:
        """Drop images, add new requests, and encode images that this step reads for the first time."""
        for mm_hash in out.dropped_encoder_hashes:
            self._encoded.pop(mm_hash, None)
        for request_id in (*out.finished_request_ids, *out.preempted_request_ids):
            self._features.pop(request_id, None)
        for row in out.scheduled:
            if row.init is not None and row.init.mm_features:
                self._features[row.request_id] = row.init.mm_features
            for feature in row.encoder_inputs:
                self._encoded[feature.mm_hash] = self._encoder(feature.data)

    def inputs_embeds(self, batch: ModelInput, embed: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Return [T, hidden] with the images' embeddings in place; None if the batch has no placeholder."""
        if not self._features:
            return None
        embeds = None
        for index, row in enumerate(batch.rows):
            end = row.start + row.num_tokens
            for feature in self._features.get(row.request_id, ()):
                first, last = max(row.start, feature.offset), min(end, feature.offset + feature.num_tokens)
                if first >= last:
                    continue
                if embeds is None:
                    embeds = embed(batch.input_ids).clone()
                rows = self._encoded[feature.mm_hash][first - feature.offset : last - feature.offset]
                at = batch.metadata.query_start_loc_cpu[index] + first - row.start
                embeds[at : at + last - first] = rows
        return embeds
