"""What the rooms promise each other: records on their way through a step, and the protocols of policy, engine, drafter
and companion. Stands on types and config alone; no torch at import."""
