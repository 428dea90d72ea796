from quizzes.experiments import Context, Result, arg, experiment


@experiment("E63")
def cost_split(
    ctx: Context,
    self_hosted: float = arg(9_200.0, 0, 1e9),
    managed_equivalent: float = arg(28_000.0, above=0, high=1e9),
    served: float = arg(0.85, above=0, high=1),
    people: float = arg(0.0, 0, 1e9),
) -> Result:
    """Compute the savings from self-hosting part of the traffic, with the rest on a managed service.

    self_hosted: the bill for `served` of the traffic; managed_equivalent: the price of that part as a service.

    Returns:
        Per month.
        managed_price [$]: Price of the whole traffic on the managed service.
        hybrid_total [$]: Own GPUs, people, and the managed rest.
        hybrid_saving [share]: Saving against the managed price.
        headline_saving [share]: GPU bill against the managed price of the same traffic, without people and the rest.
        break_even_share [share]: Share of the traffic that must be self-hosted to pay for GPUs and people.
    """
    everything = managed_equivalent / served
    total = self_hosted + people + everything * (1 - served)
    return Result(
        managed_price=everything,
        hybrid_total=total,
        hybrid_saving=1 - total / everything,
        headline_saving=1 - self_hosted / managed_equivalent,
        break_even_share=(self_hosted + people) / everything,
    )
