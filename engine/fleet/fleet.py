"""Keep as many replicas routed as are wanted; start, warm, drain, replace and stop them.

    wanted: from the settings, `scale`, or the autoscaler ------.
                                                                v
    every tick:   look at the processes  -->  autoscale  -->  adjust:  start | route | drain | stop

A replica is routed by adding it to the gateway's backends. A change never waits for another one: each tick does what
can be done now. Only processes that this fleet started are ever touched.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx

from engine.config import ConfigError
from engine.fleet.config import FleetSettings, memory_of_replica, serve_words
from engine.fleet.events import EventLog
from engine.fleet.replica import Replica, start
from engine.fleet.signals import read_signal, read_stages
from engine.gateway.backend import by_name
from engine.gateway.config import BackendSettings
from engine.gateway.proxy import Gateway
from engine.server.child_server import PREP
from engine.server.errors import ApiError
from engine.sim.autoscaler import Autoscaler
from prep_common.child_process import ProcessEnded, describe_exit
from prep_common.memory import free_host_bytes
from prep_common.text import gib

TICK_S = 0.1
REFUSED = 2
"""Exit code of `prep serve` for settings that cannot work."""
MOST_FAILURES = 3
"""Starts in a row that may fail before a fleet without any ready replica gives up."""


class Fleet:
    """Replicas behind a gateway. Used from the gateway's event loop."""

    def __init__(
        self, settings: FleetSettings, gateway: Gateway, folder: Path, events: EventLog, *, module: str = PREP
    ) -> None:
        """module: what is started as a replica; it gets the words of `prep serve`."""
        self.settings, self.gateway, self.events = settings, gateway, events
        self.replicas: list[Replica] = []
        self.wanted = settings.replicas
        self.signal = 0.0
        self.autoscaler = None if settings.autoscale is None else Autoscaler(settings.autoscale)
        self._folder, self._module = folder, module
        self._num_started = 0
        self._rolling: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._next_look = events.now() if self.autoscaler else float("inf")
        self._arrivals_before = 0
        self._failures, self._next_start, self._has_started = 0, 0.0, False

    # -- what a user asks for

    @property
    def least(self) -> int:
        return 1 if self.autoscaler is None else self.autoscaler.least(self.events.now())

    def scale(self, number: int) -> int:
        """Want so many replicas from now on. Raises ApiError 400 for a number outside the settings or the machine."""
        most = 64 if self.autoscaler is None else self.autoscaler.config.max_replicas
        if not self.least <= number <= most:
            rule = "a fleet has" if self.autoscaler is None else "autoscale allows"
            text = f"{rule} {self.least} to {most} replicas, got {number}"
            raise ApiError(400, text, param="replicas")
        alive = len(self.replicas)
        if (more := number + self.settings.warm_pool - alive) > 0:
            fit = alive + free_host_bytes() // self.memory_of_one()
            if more > fit - alive:
                raise ApiError(
                    400, f"{number} replicas need {gib(more * self.memory_of_one())} more memory; {fit} fit",
                    param="replicas",
                )  # fmt: skip
        self._want(number, "scale")
        return self.wanted

    def drain(self, name: str) -> Replica:
        """Let one replica finish its requests and stop, and want one less. Raises ApiError 400 or 404."""
        replicas = {replica.name: replica for replica in self.replicas}
        if name not in replicas:
            names = ", ".join(replicas) or "none"
            raise ApiError(404, f"no replica {name!r}; there are: {names}", param="replica")
        replica = replicas[name]
        if replica.state == "ready":
            if self.wanted <= self.least:
                raise ApiError(400, f"at least {self.least} must stay; scale up first", param="replica")
            self._want(self.wanted - 1, f"drain {name}")
        self._let_go(replica)
        return replica

    def roll(self) -> list[str]:
        """Replace all replicas, one at a time. Return the names of the old ones. Raises ApiError 409."""
        if self._rolling is not None and not self._rolling.done():
            raise ApiError(409, "a roll is under way")
        if free_host_bytes() < self.memory_of_one():
            raise ApiError(
                409, f"a roll starts one more replica, which needs {gib(self.memory_of_one())} of memory"
            )
        old = [replica for replica in self.replicas if replica.state in ("ready", "warm")]
        self._rolling = asyncio.create_task(self._roll(old))
        return [replica.name for replica in old]

    def memory_of_one(self) -> int:
        """Return the bytes of a replica: the largest that was measured, else the estimate."""
        return max((replica.memory for replica in self.replicas), default=0) or memory_of_replica(
            self.settings
        )

    # -- the loop

    async def run(self) -> None:
        """Keep the fleet as wanted, for ever. Raises ConfigError or ProcessEnded if replicas cannot start at all."""
        while True:
            await self.tick()
            await asyncio.sleep(TICK_S)

    async def tick(self) -> None:
        """Look at all processes, then do what can be done now."""
        await asyncio.gather(*map(self._look, list(self.replicas)))
        await self._autoscale()
        self._adjust()

    async def close(self) -> None:
        """End all replicas; they finish what they have begun."""
        for task in (self._rolling, *self._closing):
            if task is not None:
                task.cancel()
        servers = [replica.server for replica in self.replicas]
        self.replicas.clear()
        await asyncio.gather(*(asyncio.to_thread(server.close) for server in servers))
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _look(self, replica: Replica) -> None:
        if not replica.server.is_running:
            self._died(replica)
        elif replica.state == "starting":
            if await self._answers(replica):
                replica.start_s = time.monotonic() - replica.began
                replica.state = "warm"
                replica.stages = await read_stages(self.gateway, replica.server.url)
                await asyncio.to_thread(replica.measure_memory)
                self._failures, self._has_started = 0, True
                why = f"started in {replica.start_s:.2f} s"
                self.events.add("warm", replica.name, self.wanted, why=why, start_s=replica.start_s)
            elif time.monotonic() - replica.began > self.settings.start_timeout_s:
                self._log("died", replica, why=f"did not start within {self.settings.start_timeout_s:g} s")
                self._remove(replica)
                self._failed(replica, "did not start in time")
        elif replica.state == "draining" and not self._load(replica):
            self._drained(replica)

    def _load(self, replica: Replica) -> int:
        backend = by_name(self.gateway.backends).get(replica.name)
        return 0 if backend is None else backend.load

    async def _answers(self, replica: Replica) -> bool:
        try:
            return (
                await self.gateway.client.get(f"{replica.server.url}/health", timeout=2)
            ).status_code == 200
        except httpx.HTTPError:
            return False

    def _died(self, replica: Replica) -> None:
        why = describe_exit(replica.server.exit_code())
        self._log("died", replica, why=f"{why}: {replica.refusal()}")
        if replica.state in ("ready", "draining"):
            self.gateway.remove(replica.name)
        self._remove(replica)
        if replica.state == "starting":
            self._failed(replica, why)

    def _failed(self, replica: Replica, why: str) -> None:
        """Wait longer after every failed start; give up if none ever succeeded, at once if the settings are wrong."""
        if replica.server.exit_code(0) == REFUSED and not self._has_started:
            raise ConfigError(f"prep serve refuses the settings: {replica.refusal()}")
        self._failures += 1
        self._next_start = self.events.now() + min(30.0, 0.5 * 2**self._failures)
        if self._failures >= MOST_FAILURES and not any(other.start_s for other in self.replicas):
            raise ProcessEnded(replica.server.name, None, why, replica.server.log_tail())

    # -- how many

    async def _autoscale(self) -> None:
        scaler, now = self.autoscaler, self.events.now()
        if scaler is None:
            return
        wakes = self.wanted == 0 and self.gateway.num_held > 0
        if now < self._next_look and not wakes:
            return
        self._next_look = now + scaler.config.interval
        arrivals = self.gateway.num_arrivals - self._arrivals_before
        self._arrivals_before = self.gateway.num_arrivals
        backends = [backend for backend in self.gateway.backends if not backend.is_draining]
        if self.wanted and not backends:  # the first ones start: no signal yet
            return
        self.signal = await read_signal(scaler.config, self.gateway, backends, arrivals)
        change = scaler.decide(now, max(self.signal, float(wakes)), self.wanted)
        if change:
            rule = scaler.config.out_above if change > 0 else scaler.config.in_below
            side = "above" if change > 0 else "below"
            why = "a request woke it" if wakes else f"{scaler.config.signal} {side} {rule:g}"
            self._want(self.wanted + change, why)

    def _want(self, number: int, why: str) -> None:
        if number == self.wanted:
            return
        kind = "out" if number > self.wanted else "in"
        self.wanted = number
        self.events.add(kind, replicas=number, signal=round(self.signal, 3), why=why)

    def _adjust(self) -> None:
        """Route, start, drain or stop replicas, so that as many are routed and warm as wanted."""
        ready, warm, starting = (
            [replica for replica in self.replicas if replica.state == state and not replica.is_kept]
            for state in ("ready", "warm", "starting")
        )
        while warm and len(ready) < self.wanted:
            self._route(warm[0])
            ready.append(warm.pop(0))
        if len(ready) > self.wanted:
            self._let_go(min(ready, key=self._load))
        spare = max(0, self.wanted - len(ready)) + self.settings.warm_pool - len(warm) - len(starting)
        for _ in range(spare):
            self._start()
        for replica in [*warm, *reversed(starting)][: max(0, -spare)]:
            self._stop(replica)

    # -- one replica

    def _start(self) -> Replica | None:
        """Start a replica if there is memory for it."""
        if self.events.now() < self._next_start:
            return None
        if free_host_bytes() < self.memory_of_one():
            self._next_start = self.events.now() + 10.0
            why = f"a replica needs {gib(self.memory_of_one())} of memory, {gib(free_host_bytes())} are free"
            self.events.add("refused", replicas=self.wanted, why=why)
            return None
        self._num_started += 1
        settings = self.settings
        replica = start(
            f"r{self._num_started}", serve_words(settings), self._folder,
            threads=settings.threads, grace_s=settings.drain_timeout_s + 5, module=self._module,
        )  # fmt: skip
        self.replicas.append(replica)
        self._log("start", replica)
        return replica

    def _route(self, replica: Replica) -> None:
        self.gateway.add(BackendSettings(name=replica.name, url=replica.server.url))
        replica.state = "ready"
        self._log("ready", replica)

    def _let_go(self, replica: Replica) -> None:
        """Drain a routed replica; stop one that gets no requests yet."""
        if replica.state == "ready":
            self.gateway.drain(replica.name)
            replica.state = "draining"
            self._log("drain", replica)
        elif replica.state != "draining":
            self._stop(replica)

    def _drained(self, replica: Replica) -> None:
        """Keep a drained replica warm if the pool has room, else stop it."""
        self.gateway.remove(replica.name)
        num_warm = sum(other.state in ("warm", "starting") for other in self.replicas)
        if num_warm < self.settings.warm_pool and self._rolling is None:
            replica.state = "warm"
            self._log("warm", replica, why="drained")
        else:
            self._stop(replica)

    def _stop(self, replica: Replica) -> None:
        self._remove(replica)
        self._log("stopped", replica)

    def _remove(self, replica: Replica) -> None:
        """Forget a replica and end its process."""
        self.replicas.remove(replica)
        closing = asyncio.create_task(asyncio.to_thread(replica.server.close))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _roll(self, old: list[Replica]) -> None:
        self.events.add(
            "roll", replicas=self.wanted, why=f"replaces {', '.join(replica.name for replica in old)}"
        )
        for replica in old:
            if replica not in self.replicas:
                continue
            new = self._start()
            if new is None:
                self.events.add("roll", replicas=self.wanted, why="ended early: no room for one more replica")
                return
            new.is_kept = True
            while new in self.replicas and new.state == "starting":
                await asyncio.sleep(TICK_S)
            if new not in self.replicas:
                self.events.add("roll", replicas=self.wanted, why=f"ended early: {new.name} did not start")
                return
            was_routed = replica.state == "ready"
            if was_routed:
                self._route(new)
            self._let_go(replica)
            new.is_kept = False
            while replica in self.replicas:
                await asyncio.sleep(TICK_S)
        self.events.add("roll", replicas=self.wanted, why="done")

    def _log(self, kind: str, replica: Replica, *, why: str = "") -> None:
        self.events.add(kind, replica.name, self.wanted, why=why)

    # -- what it looks like

    def state(self) -> dict[str, Any]:
        """Return the state for `prep fleet status --json`."""
        loads = by_name(self.gateway.backends)
        now = time.monotonic()
        replicas = [
            {
                "name": replica.name, "state": replica.state, "url": replica.server.url, "pid": replica.server.pid,
                "age_s": round(now - replica.began, 1), "start_s": replica.start_s, "stages": replica.stages,
                "memory_bytes": replica.memory, "load": loads[replica.name].load if replica.name in loads else 0,
                "requests": loads[replica.name].num_requests if replica.name in loads else 0,
            }
            for replica in self.replicas
        ]  # fmt: skip
        scaler = self.autoscaler
        return {
            "name": self.settings.name, "model": self.settings.model, "policy": self.settings.policy,
            "wanted": self.wanted, "held": self.gateway.num_held, "requests": self.gateway.num_arrivals,
            "rolling": self._rolling is not None and not self._rolling.done(),
            "replicas": replicas,
            "autoscaler": None if scaler is None else {
                "signal": scaler.config.signal, "value": self.signal, "out_above": scaler.config.out_above,
                "in_below": scaler.config.in_below, "overload_s": scaler.overload_seconds,
            },
            "thrash": self.events.thrash(),
            "events": [vars(event) for event in self.events.events],
        }  # fmt: skip
