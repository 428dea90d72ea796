from typing import Any

from engine.config import CacheConfig
from engine.core.kv_manager import KVManager
from engine.core.request import MultiModalFeature, Request
from engine.sampling_params import SamplingParams
from quizzes.experiments import Context, Result, arg, experiment


@experiment("E10")
def isolation_keys(
    ctx: Context,
    prompt: int = arg(100, 20, 4000),
    image_at: int = arg(40, 0, 3990),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Check which of two requests with identical token ids may share KV when their adapter, salt, image or type
    differs.

    Both requests have `prompt` tokens; with images, 10 of them are placeholders from `image_at` on.

    Returns:
        Tokens of the second request's hit on the first one's blocks, by the difference between the two.
        nothing [tokens]: Two users, the same prompt, no salt.
        sampling [tokens]: Another temperature and another seed.
        salt [tokens]
        same_salt [tokens]: Both carry the same salt.
        adapter [tokens]: An adapter against the base model.
        same_adapter [tokens]
        reloaded_adapter [tokens]: An adapter of the same name that was loaded anew from changed files.
        image [tokens]: Another image with the same placeholder tokens, at `image_at`.
        model [tokens]: Other weights, in a store that both engines use.
        kv_dtype [tokens]: The same weights with an FP8 KV cache, in a store that both engines use.
    """
    image_at = min(image_at, prompt - 10)
    world = _World(prompt, block_size)

    def image(content: str) -> dict[str, Any]:
        return {"mm_features": [MultiModalFeature(content, image_at, 10, None)]}

    return Result(
        nothing=world.hit({}, {}),
        sampling=world.hit({"temperature": 0.0}, {"temperature": 1.0, "seed": 7}),
        salt=world.hit({"cache_salt": "tenant-a"}, {"cache_salt": "tenant-b"}),
        same_salt=world.hit({"cache_salt": "tenant-a"}, {"cache_salt": "tenant-a"}),
        adapter=world.hit({"lora_key": "shop-lora#1"}, {}),
        same_adapter=world.hit({"lora_key": "shop-lora#1"}, {"lora_key": "shop-lora#1"}),
        reloaded_adapter=world.hit({"lora_key": "shop-lora#1"}, {"lora_key": "shop-lora#2"}),
        image=world.hit(image("cover-a"), image("cover-b")),
        model=world.common({"model_fingerprint": "v1"}, {"model_fingerprint": "v2"}),
        kv_dtype=world.common({"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "fp8"}),
    )


class _World:
    """Requests of one length, and KV managers."""

    def __init__(self, prompt: int, block_size: int) -> None:
        self.prompt = prompt
        self.block_size = block_size

    def hit(self, first: dict[str, Any], second: dict[str, Any]) -> int:
        """Return the second request's hit after the first has finished, on one engine."""
        manager = self._manager()
        done = self._request("first", **first)
        manager.add(done)
        if manager.admit(done, manager.match(done), self.prompt) is None:
            raise AssertionError("the pool has room for one prompt")
        done.num_computed_tokens = self.prompt
        manager.publish(done)
        manager.free(done)
        asking = self._request("second", **second)
        manager.add(asking)
        return manager.match(asking).num_blocks * self.block_size

    def common(self, first: dict[str, Any], second: dict[str, Any]) -> int:
        """Return the tokens of the second engine's hashes that a store with the first engine's blocks holds."""
        chains = []
        for settings in (first, second):
            request = self._request("request")
            self._manager(**settings).add(request)
            chains.append(request.block_hashes)
        stored = set(chains[0])
        return sum(block_hash in stored for block_hash in chains[1]) * self.block_size

    def _manager(self, model_fingerprint: str = "v1", **cache: Any) -> KVManager:
        num_blocks = 2 * (self.prompt // self.block_size + 2)
        return KVManager(
            CacheConfig(num_blocks, self.block_size, **cache), model_fingerprint=model_fingerprint
        )

    def _request(
        self, name: str, temperature: float = 0.0, seed: int | None = None, **identity: Any
    ) -> Request:
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=1)
        return Request(name, list(range(self.prompt)), params, **identity)
