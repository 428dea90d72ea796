"""Watch and control a running engine from another process: `EngineArgs.debug_port`, `prep app --attach URL`."""
