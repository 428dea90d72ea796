"""The inside of a sandbox: what runs in the guest process. It imports nothing but the standard library."""
