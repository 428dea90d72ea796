"""One step on one device: state, input, forward pass, sampling.

Source: vLLM v1/worker/gpu/model_runner.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from engine.attention.backend import AttentionBackend
from engine.attention.forward_context import ForwardContext, set_forward_context
from engine.config import EngineConfig
from engine.core.sched_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from engine.lora.manager import LoRAManager
from engine.models.loader import CausalLM
from engine.quant.kv_cache import KVCache
from engine.sample.sampler import Sampler, SamplerOutput, resolve_num_logprobs, token_logprobs
from engine.worker.batch_state import BatchState
from engine.worker.cuda_graphs import CUDARecorder
from engine.worker.decode_graphs import MAX_TOKENS, CPURecorder, DecodeGraphs, graph_size
from engine.worker.encoder_runner import EncoderRunner
from engine.worker.model_input import InputBuilder, ModelInput
from engine.worker.speculator import Speculator

PROMPT_LOGPROBS_CHUNK = 256
"""Prompt positions whose logits are computed at once; those of a long prompt would be larger than the model."""


class ModelRunner:
    """Run steps of the scheduler on the model. Requests are known by their state slots."""

    def __init__(
        self,
        config: EngineConfig,
        model: CausalLM,
        backend: AttentionBackend,
        kv_cache: KVCache,
        *,
        use_graphs: bool = False,
        image_encoder: Callable[..., Tensor] | None = None,
        make_speculator: Callable[[ModelRunner], Speculator] | None = None,
        lora: LoRAManager | None = None,
    ) -> None:
        """use_graphs: replay decode steps; on a CPU for models that compute with the C++ kernels alone."""
        self.model = model
        self.backend = backend
        self.kv_cache = kv_cache
        self.device = kv_cache.kv.device
        self.vocab_size = config.model.vocab_size
        max_num_seqs = config.scheduler.max_num_seqs
        self.state = BatchState(max_num_seqs, config.scheduler.max_model_len, config.cache.block_size)
        self._inputs = InputBuilder(self.state, self.device)
        self.sampler = Sampler(self.vocab_size, max_num_seqs, self.device, config.logits_processors)
        self._num_prompt_logprobs: dict[str, int] = {}  # by request id
        self._wants_embedding: set[str] = set()
        self._lora = lora
        self._lost_adapters: dict[str, str] = {}
        """Adapter keys by request id: rows of this step whose adapter cannot be read any more."""
        self._images = None if image_encoder is None else EncoderRunner(image_encoder)
        self._graphs: DecodeGraphs | None = None
        if use_graphs:
            largest = min(MAX_TOKENS, graph_size(max_num_seqs))
            recorder = CUDARecorder(largest) if self.device.type == "cuda" else CPURecorder()
            max_blocks = self.state.block_table.shape[1]
            self._graphs = DecodeGraphs(self._forward_with_logits, max_blocks, recorder)
        self._speculator = None if make_speculator is None else make_speculator(self)

    @property
    def replays(self) -> bool:
        """Whether decode steps are replayed from recordings. It becomes false when `replay_off_reason` is set."""
        return self._graphs is not None and not self._graphs.off_reason

    @property
    def replay_off_reason(self) -> str:
        """Return why replay switched itself off, which is also logged; empty if it did not."""
        return "" if self._graphs is None else self._graphs.off_reason

    @torch.inference_mode()
    def execute(
        self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None = None
    ) -> ModelRunnerOutput:
        """Compute a step, and sample for rows whose known tokens are then all computed."""
        if self._lora is not None:
            self._lora.begin_step(out)
        self._update_state(out)
        if not out.scheduled:
            return ModelRunnerOutput()
        has_drafts = self._speculator is not None and self.state.write_drafts(out.scheduled)
        batch = self._inputs.build(out.scheduled, has_drafts)
        embeds = None if self._images is None else self._images.inputs_embeds(batch, self.model.embed_tokens)
        logits: Tensor | None
        if (replayed := self._replay(batch) if embeds is None else None) is not None:
            hidden, logits = replayed
            result = self._sample(batch, logits, bitmask)
        else:
            states = self._forward(batch, embeds)
            if states is None:  # the next pipeline stage has it
                return ModelRunnerOutput()
            hidden = states
            logits = self._compute_logits(batch, hidden) if len(batch.sampled_rows) else None
            result = ModelRunnerOutput() if logits is None else self._sample(batch, logits, bitmask)
            if self._num_prompt_logprobs:
                result.prompt_logprobs = self._prompt_logprobs(batch, hidden)
        if self._wants_embedding:
            result.embeddings = self._embeddings(batch, hidden)
        if self._speculator is not None:
            result.draft_token_ids = self._speculator.propose(batch, hidden, result)
        if self._lost_adapters:
            self._report_lost_adapters(result)
        return result

    def _replay(self, batch: ModelInput) -> tuple[Tensor, ...] | None:
        """Replay a step in which every token gets logits: hidden states and logits; None if it cannot be replayed."""
        if self._graphs is None or batch.logits_rows is not None or self._num_prompt_logprobs:
            return None
        return self._graphs.run(batch)

    def _forward_with_logits(self, batch: ModelInput) -> tuple[Tensor, Tensor]:
        hidden = self._forward(batch)
        assert hidden is not None
        logits = self.model.compute_logits(hidden)
        assert logits is not None
        return hidden, logits

    def _update_state(self, out: SchedulerOutput) -> None:
        for request_id in (*out.finished_request_ids, *out.preempted_request_ids):
            self._remove(request_id)
        for row in out.scheduled:
            if row.init is not None:
                self._remove(row.request_id)  # still here only if the step with its end was interrupted
                slot = self.state.add(row.request_id, row.init)
                if self._lora is not None and (key := row.init.lora_key):
                    if (lora_slot := self._lora.slot(key)) is None:
                        self._lost_adapters[row.request_id] = key
                    else:
                        self.state.lora_slot[slot] = lora_slot
                self.sampler.add_request(slot, row.init)
                if self._speculator is not None:
                    self._speculator.add_request(slot, row.init, row.start)
                asked = resolve_num_logprobs(row.init.sampling_params.prompt_logprobs, self.vocab_size)
                if asked >= 0:
                    self._num_prompt_logprobs[row.request_id] = asked
                if row.init.wants_embedding:
                    self._wants_embedding.add(row.request_id)
            if row.new_token_ids:
                self.state.set_tokens(row.request_id, row.start, row.new_token_ids)
        self.state.append_blocks(out.scheduled)
        if self._images is not None:
            self._images.update(out)

    def _report_lost_adapters(self, result: ModelRunnerOutput) -> None:
        """Discard the output of rows that were computed without their adapter, and report errors."""
        for request_id, key in self._lost_adapters.items():
            result.sampled_token_ids.pop(request_id, None)
            result.logprobs.pop(request_id, None)
            result.embeddings.pop(request_id, None)
            result.errors[request_id] = f"the weights of adapter {key} can no longer be read; load it again"
        self._lost_adapters.clear()

    def _remove(self, request_id: str) -> None:
        slot = self.state.remove(request_id)
        if slot is not None:
            self.sampler.remove_request(slot)
            if self._speculator is not None:
                self._speculator.remove_request(slot)
            self._num_prompt_logprobs.pop(request_id, None)
            self._wants_embedding.discard(request_id)

    def _forward(self, batch: ModelInput, inputs_embeds: Tensor | None = None) -> Tensor | None:
        cache = self.kv_cache
        self.backend.build(batch.metadata)
        context = ForwardContext(
            batch.metadata, self.backend, cache.kv, cache.scales, token_adapter=batch.token_adapter
        )
        with set_forward_context(context):
            return self.model(batch.input_ids, batch.positions, inputs_embeds)

    def _compute_logits(self, batch: ModelInput, hidden: Tensor) -> Tensor | None:
        """Return fp32 [S, V] for the sampled positions; None on tensor ranks that do not gather logits."""
        return self.model.compute_logits(hidden if batch.logits_rows is None else hidden[batch.logits_rows])

    def _sample(
        self, batch: ModelInput, logits: Tensor, bitmask: Future[GrammarBitmask] | None
    ) -> ModelRunnerOutput:
        mask = None if bitmask is None else self._mask(batch, bitmask.result())
        if self._speculator is not None and batch.has_drafts:
            return self._speculator.verify(batch, logits, mask)
        sampled = self.sampler(logits, batch.sample_batch, mask)
        self.state.append_tokens(batch.sample_batch.slots, sampled.token_ids)
        return _by_request(batch, sampled)

    def _mask(self, batch: ModelInput, bitmask: GrammarBitmask) -> Tensor:
        """Return the bitmask of the S sampled positions, built during the forward pass."""
        sampled = batch.sampled_rows.tolist()
        num_drafts = batch.sample_batch.num_drafts
        behind = [0] * len(sampled) if num_drafts is None else num_drafts.tolist()
        positions = [
            (batch.rows[row].request_id, drafts) for row, drafts in zip(sampled, behind, strict=True)
        ]
        return bitmask_rows(bitmask, positions).to(self.device)

    def _embeddings(self, batch: ModelInput, hidden: Tensor) -> dict[str, list[float]]:
        """Pool the last token, as vLLM does for decoders: the normalised state that predicts the next token."""
        embeddings: dict[str, list[float]] = {}
        for index in batch.sampled_rows.tolist():
            request_id = batch.rows[index].request_id
            if request_id in self._wants_embedding:
                last = hidden[batch.metadata.query_start_loc_cpu[index + 1] - 1]
                embeddings[request_id] = normalize(last.float(), dim=0).tolist()
        return embeddings

    def _prompt_logprobs(self, batch: ModelInput, hidden: Tensor) -> dict[str, list[TokenLogprobs]]:
        """Return log-probabilities of prompt tokens: position p predicts token p + 1; the last predicts output."""
        logprobs: dict[str, list[TokenLogprobs]] = {}
        for index, row in enumerate(batch.rows):
            count = self._num_prompt_logprobs.get(row.request_id)
            if count is None:
                continue
            slot, end = batch.slots[index], row.start + row.num_tokens
            num_positions = min(end, int(self.state.num_prompt_tokens[slot]) - 1) - row.start
            if num_positions > 0:
                first = batch.metadata.query_start_loc_cpu[index]
                targets = self.state.token_ids[slot, row.start + 1 : row.start + 1 + num_positions]
                logprobs[row.request_id] = self._logprobs_of(
                    hidden[first : first + num_positions], torch.from_numpy(targets.astype("int64")), count
                )
        return logprobs

    def _logprobs_of(self, hidden: Tensor, targets: Tensor, count: int) -> list[TokenLogprobs]:
        entries: list[TokenLogprobs] = []
        chunks = zip(hidden.split(PROMPT_LOGPROBS_CHUNK), targets.split(PROMPT_LOGPROBS_CHUNK), strict=True)
        for part, part_targets in chunks:
            logits = self.model.compute_logits(part)
            if logits is not None:
                entries += token_logprobs(logits.log_softmax(-1), part_targets, [count] * len(part))
        return entries


def _by_request(batch: ModelInput, sampled: SamplerOutput) -> ModelRunnerOutput:
    """Map the sampler's rows to request ids. Rows without a token become errors."""
    rows = batch.rows
    request_ids = [rows[index].request_id for index in batch.sampled_rows.tolist()]
    tokens = zip(request_ids, sampled.token_ids.tolist(), strict=True)
    result = ModelRunnerOutput(
        sampled_token_ids={request_id: [token] for request_id, token in tokens},
        logprobs={request_ids[row]: [entry] for row, entry in sampled.logprobs.items()},
    )
    for row, message in sampled.errors.items():
        request_id = request_ids[row]
        result.errors[request_id] = message
        del result.sampled_token_ids[request_id]
        result.logprobs.pop(request_id, None)
    return result


def bitmask_rows(bitmask: GrammarBitmask, positions: Sequence[tuple[str, int]]) -> Tensor:
    """Return int32 [S, W]: the lines of a bitmask in the order of the logits' rows.

        logits rows     decode b   decode a   prefill c, ends here        the scheduler has another order,
        mask            all        a's line   c's line                    and rows without a grammar have no line

    positions: (request id, index of the sampled position) of each row of the logits.
    Source: vLLM v1/worker/gpu/structured_outputs.py.
    """
    line_of = {position: line for line, position in enumerate(bitmask.rows)}
    lines = np.array([line_of.get(position, -1) for position in positions], np.int64)
    words = np.full((len(positions), bitmask.words.shape[1]), -1, np.int32)  # all bits set
    words[lines >= 0] = bitmask.words[lines[lines >= 0]]
    return torch.from_numpy(words)
