"""Options of random requests, shared by the simulator and the load generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from app.cli.options import option
from engine.sim.workload import Lengths, Workload


@dataclass(frozen=True)
class DrawnRequests:
    """Requests at random times with random lengths."""

    rate: Annotated[float, option("Requests per second.")] = 4.0
    prompt: Annotated[str, option("Prompt tokens: 1000, 500-1500 or lognormal:MEAN:SIGMA.")] = "1000"
    output: Annotated[str, option("Generated tokens, in the same forms.")] = "200"
    arrivals: Annotated[str, option("poisson, gamma (bursty, see --cv) or constant.")] = "poisson"
    cv: Annotated[float, option("Gamma: standard deviation over mean of the gaps.")] = 2.0
    num_prefixes: Annotated[int, option("Number of shared prompt prefixes; 0: none.", min=0)] = 0
    prefix_len: Annotated[int, option("Tokens of a shared prefix.", min=0)] = 0
    seed: Annotated[int, option("The same seed draws the same requests.")] = 0

    def draw(self, num_requests: int) -> Workload:
        """Return the workload. Raises ConfigError for wrong settings."""
        return Workload(
            num_requests,
            self.rate,
            Lengths.parse(self.prompt),
            Lengths.parse(self.output),
            self.arrivals,  # type: ignore[arg-type]
            self.cv,
            self.num_prefixes,
            self.prefix_len,
            seed=self.seed,
        )
