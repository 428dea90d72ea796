"""Running a service: gateways, scaling, metrics, incidents, cold starts."""
